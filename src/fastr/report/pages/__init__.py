"""HTML pages that need nothing beside them: what those of reports, diagnoses and studies share."""
