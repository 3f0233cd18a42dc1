"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const redraw = [];

  /* Names reach the page through textContent and setAttribute alone, so they stay text. */
  function svg(parent, name, attributes = {}, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(parent, name, properties = {}) {
    const made = Object.assign(document.createElement(name), properties);
    parent.append(made);
    return made;
  }

  function swatch(parent, line) {
    const box = svg(parent, "svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
    const look = { x1: 0, x2: 22, y1: 5, y2: 5, stroke: shade(line), "stroke-width": 3 };
    svg(box, "line", { ...look, "stroke-dasharray": line.dash });
  }

  const shade = (line) => `var(--c${line.color})`;

  /* Numbers along an axis, all in the unit that suits the largest. */
  function short(value, all) {
    const largest = Math.max(...all.map(Math.abs));
    if (largest >= 1e6 && value) return `${+(value / 1e6).toPrecision(4)}M`;
    if (largest >= 1e4 && value) return `${+(value / 1e3).toPrecision(4)}k`;
    return `${+value.toPrecision(4)}`;
  }

  /* Three decimals in a chart of shares, else one for small numbers and none for others. */
  function exact(value, largest) {
    const decimals = largest < 1.5 ? 3 : Number(Math.abs(value) < 10);
    return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const units = power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
    const step = units.map((unit) => unit * power).find((unit) => unit >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
    return found;
  }

  function scale(low, high, from, to) {
    const width = high - low || 1;
    return (value) => from + ((value - low) / width) * (to - from);
  }

  function padded(low, high) {
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  function canvas(plot, width, height) {
    plot.replaceChildren();
    const label = plot.dataset.alternative;
    const attributes = { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label };
    return svg(plot, "svg", attributes);
  }

  function axes(root, frame, x, y, xTicks, yTicks) {
    for (const value of yTicks) {
      svg(root, "line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) });
      const at = { x: frame.left - 8, y: y(value) + 4, "text-anchor": "end" };
      svg(root, "text", at, short(value, yTicks));
    }
    svg(root, "line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom });
    for (const value of xTicks) {
      svg(root, "line", { class: "axis", x1: x(value), x2: x(value), y1: frame.bottom, y2: frame.bottom + 5 });
      svg(root, "text", { x: x(value), y: frame.bottom + 19, "text-anchor": "middle" }, short(value, xTicks));
    }
  }

  /* Labels at the ends of lines, pushed apart until none covers another. */
  function spread(labels, low, high) {
    const gap = 15;
    labels.sort((a, b) => a.y - b.y);
    labels.forEach((label, i) => { label.at = Math.max(label.y, i ? labels[i - 1].at + gap : low); });
    for (let i = labels.length - 1, limit = high; i >= 0; i -= 1, limit -= gap) {
      labels[i].at = Math.min(labels[i].at, limit);
      limit = Math.min(limit, labels[i].at);
    }
  }

  function cut(text, letters) {
    return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
  }

  function drawLines(chart, plot, width) {
    const shown = chart.lines.filter((line) => !hidden.has(line.name));
    const named = shown.filter((line, i) => shown.findIndex((l) => l.name === line.name) === i);
    const direct = width >= 520;
    const longest = Math.max(0, ...named.map((line) => line.name.length));
    const room = direct ? Math.min(width * 0.32, 30 + 6.6 * longest) : 20;
    const height = Math.round(Math.min(360, Math.max(230, width * 0.56)));
    const frame = { left: 48, right: width - room, top: 24, bottom: height - 42 };
    const root = canvas(plot, width, height);
    const points = chart.lines.flatMap((line) => line.points);
    const values = points.flatMap((p) => [p[2], p[3]]).concat(chart.levels.map((l) => l.value));
    const low = Math.min(0, ...values);
    const high = Math.max(...values) * 1.04 || 1;
    const xs = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
    const x = scale(xs[0], xs[xs.length - 1], frame.left, frame.right);
    const y = scale(low, high, frame.bottom, frame.top);
    axes(root, frame, x, y, ticks(xs[0], xs[xs.length - 1], width < 420 ? 4 : 6), ticks(low, high, 5));
    svg(root, "text", { x: 0, y: 12 }, chart.y);
    svg(root, "text", { x: frame.right, y: height - 6, "text-anchor": "end" }, chart.x);
    for (const level of chart.levels) {
      svg(root, "line", { class: "reference", x1: frame.left, x2: frame.right, y1: y(level.value), y2: y(level.value) });
      svg(root, "text", { x: frame.left + 4, y: y(level.value) - 4 }, level.name);
    }
    /* A curve that ends early ends in a dot; a label far from it would pass for its way on. */
    const atEnd = (line) => line.points[line.points.length - 1][0] === xs[xs.length - 1];
    for (const line of shown) {
      const path = (i) => line.points.map((p) => `${x(p[0])},${y(p[i])}`);
      const band = `M${path(3).join("L")}L${path(2).reverse().join("L")}Z`;
      svg(root, "path", { class: "band", d: band, fill: shade(line) });
    }
    for (const line of shown) {
      const d = `M${line.points.map((p) => `${x(p[0])},${y(p[1])}`).join("L")}`;
      svg(root, "path", { class: "curve", d, stroke: shade(line), "stroke-dasharray": line.dash, "data-name": line.name });
      const end = line.points[line.points.length - 1];
      if (!atEnd(line)) svg(root, "circle", { cx: x(end[0]), cy: y(end[1]), r: 4, fill: shade(line) });
    }
    if (direct) {
      const labels = named.filter(atEnd).map((line) => {
        const end = line.points[line.points.length - 1];
        return { line, x: x(end[0]), y: y(end[1]) };
      });
      spread(labels, frame.top, frame.bottom);
      for (const { line, x: from, y: end, at } of labels) {
        const d = `M${from + 2},${end}L${frame.right + 12},${at}H${frame.right + 18}`;
        svg(root, "path", { d, fill: "none", stroke: shade(line), "stroke-width": 1.5, opacity: 0.75 });
        svg(root, "text", { class: "name", x: frame.right + 22, y: at + 4 }, cut(line.name, Math.floor((room - 22) / 6.2)));
      }
    }
    inspect(root, plot, shown, xs, x, y, frame, chart);
  }

  /* The values under the pointer or, with the arrow keys, at each evaluation. */
  function inspect(root, plot, lines, xs, x, y, frame, chart) {
    const rule = svg(root, "g", { visibility: "hidden" });
    const tip = html(plot, "div", { className: "tip" });
    tip.setAttribute("role", "status");
    const largest = Math.max(...lines.flatMap((line) => line.points.map((p) => Math.abs(p[1]))));
    let place = -1;
    function show(next) {
      place = next;
      rule.replaceChildren();
      tip.replaceChildren();
      if (place < 0) return rule.setAttribute("visibility", "hidden");
      const at = xs[place];
      rule.setAttribute("visibility", "visible");
      svg(rule, "line", { class: "rule", x1: x(at), x2: x(at), y1: frame.top, y2: frame.bottom });
      html(tip, "div", { textContent: `${at.toLocaleString("en")} ${chart.x.split(" (")[0]}` });
      const here = lines.map((line) => ({ line, point: line.points.find((p) => p[0] === at) }));
      for (const { line, point } of here.filter((h) => h.point).sort((a, b) => b.point[1] - a.point[1])) {
        svg(rule, "circle", { cx: x(at), cy: y(point[1]), r: 4, fill: shade(line) });
        const row = html(tip, "div");
        swatch(row, line);
        const spreadText = point[3] > point[2] ? ` ± ${exact((point[3] - point[2]) / 2, largest)}` : "";
        html(row, "span", { textContent: `${line.name}: ${exact(point[1], largest)}${spreadText}` });
      }
      const left = x(at) > (frame.left + frame.right) / 2;
      tip.style.left = left ? "auto" : `${x(at) + 10}px`;
      tip.style.right = left ? `${root.viewBox.baseVal.width - x(at) + 10}px` : "auto";
      return undefined;
    }
    root.addEventListener("pointermove", (event) => {
      const box = root.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * root.viewBox.baseVal.width;
      if (at < frame.left - 20 || at > frame.right + 20) return show(-1);
      const far = xs.map((value) => Math.abs(x(value) - at));
      return show(far.indexOf(Math.min(...far)));
    });
    root.addEventListener("pointerleave", () => show(-1));
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", "Chart; left and right arrow keys read the values");
    plot.onkeydown = (event) => {
      const moves = { ArrowLeft: place < 0 ? xs.length - 1 : Math.max(0, place - 1), ArrowRight: Math.min(xs.length - 1, place + 1), Home: 0, End: xs.length - 1, Escape: -1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    };
    plot.onblur = () => show(-1);
  }

  function drawIntervals(chart, plot, width) {
    const wide = width >= 520;
    const row = wide ? 30 : 60;
    const longest = Math.max(...chart.bars.map((bar) => bar.label.length));
    const names = wide ? Math.min(width * 0.46, 14 + 6.6 * longest) : 8;
    const right = wide ? 150 : 12;
    const height = chart.bars.length * row + 56;
    const frame = { left: names, right: width - right, top: 8, bottom: height - 44 };
    const root = canvas(plot, width, height);
    const ends = chart.bars.flatMap((bar) => [bar.value, bar.low ?? bar.value, bar.high ?? bar.value]);
    if (chart.reference !== null) ends.push(chart.reference);
    const [low, high] = padded(Math.min(...ends), Math.max(...ends));
    const x = scale(low, high, frame.left, frame.right);
    axes(root, frame, x, () => 0, ticks(low, high, width < 420 ? 3 : 6), []);
    svg(root, "text", { x: frame.right, y: height - 6, "text-anchor": "end" }, chart.x);
    chart.bars.forEach((bar, i) => {
      const at = frame.top + i * row + (wide ? row / 2 : row - 16);
      const letters = Math.floor((wide ? names - 10 : width) / 6.4);
      const number = bar.low === null ? `${bar.value.toFixed(3)} (one seed)`
        : `${bar.value.toFixed(3)} [${bar.low.toFixed(3)}, ${bar.high.toFixed(3)}]`;
      const spot = wide ? { x: names - 10, y: at + 4, "text-anchor": "end" } : { x: 0, y: at - 28 };
      svg(root, "text", { class: "name", ...spot }, cut(bar.label, letters));
      svg(root, "text", wide ? { x: width, y: at + 4, "text-anchor": "end" } : { x: 0, y: at - 13 }, number);
      svg(root, "line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at });
      if (chart.reference !== null) {
        const zero = x(chart.reference);
        const half = wide ? row / 2 : 8;
        svg(root, "line", { class: "reference", x1: zero, x2: zero, y1: at - half, y2: at + half });
      }
      if (bar.low !== null) {
        svg(root, "line", { x1: x(bar.low), x2: x(bar.high), y1: at, y2: at, stroke: shade(bar), "stroke-width": 3 });
      }
      svg(root, "circle", { cx: x(bar.value), cy: at, r: 5, fill: shade(bar) });
    });
  }

  function drawScatter(chart, plot, width) {
    const height = Math.round(Math.min(380, Math.max(260, width * 0.6)));
    const frame = { left: 52, right: width - 16, top: 24, bottom: height - 42 };
    const root = canvas(plot, width, height);
    const across = padded(Math.min(0, ...chart.points.map((p) => p.low)), Math.max(0, ...chart.points.map((p) => p.high)));
    const up = padded(Math.min(0, ...chart.points.map((p) => p.y)), Math.max(0, ...chart.points.map((p) => p.y)));
    const x = scale(...across, frame.left, frame.right);
    const y = scale(...up, frame.bottom, frame.top);
    axes(root, frame, x, y, ticks(...across, width < 420 ? 3 : 6), ticks(...up, 5));
    svg(root, "line", { class: "reference", x1: x(0), x2: x(0), y1: frame.top, y2: frame.bottom });
    svg(root, "line", { class: "reference", x1: frame.left, x2: frame.right, y1: y(0), y2: y(0) });
    svg(root, "text", { x: 0, y: 12 }, chart.y);
    svg(root, "text", { x: frame.right, y: height - 6, "text-anchor": "end" }, chart.x);
    for (const point of chart.points) {
      svg(root, "line", { x1: x(point.low), x2: x(point.high), y1: y(point.y), y2: y(point.y), stroke: "var(--c0)", opacity: 0.6 });
      const radius = 4 + Math.sqrt(point.size);
      const dot = svg(root, "circle", { cx: x(point.x), cy: y(point.y), r: radius, fill: "var(--c0)", opacity: 0.85 });
      svg(dot, "title", {}, `${point.name}: ${point.size} action dimensions`);
      const end = x(point.x) > width * 0.7;
      const spot = { x: x(point.x) + (end ? -1 : 1) * (radius + 4), "text-anchor": end ? "end" : "start" };
      svg(root, "text", { class: "name", y: y(point.y) - radius, ...spot }, cut(point.name, 40));
    }
  }

  function legend(chart, box) {
    const lines = (chart.lines || []).filter((line, i, all) => all.findIndex((l) => l.name === line.name) === i);
    if (lines.length < 2) return box.remove();
    for (const line of lines) {
      const button = html(box, "button", { type: "button" });
      button.dataset.name = line.name;
      swatch(button, line);
      html(button, "span", { textContent: line.name });
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => toggle(line.name));
    }
    return undefined;
  }

  function toggle(name) {
    if (!hidden.delete(name)) hidden.add(name);
    for (const button of document.querySelectorAll(".legend button")) {
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.name)));
    }
    redraw.forEach((draw) => draw());
  }

  const kinds = { lines: drawLines, intervals: drawIntervals, scatter: drawScatter };
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = data[figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    legend(chart, figure.querySelector(".legend"));
    let width = 0;
    const draw = () => { if (width) kinds[chart.kind](chart, plot, width); };
    redraw.push(draw);
    new ResizeObserver(() => {
      const now = Math.floor(plot.clientWidth);
      if (now !== width) { width = now; draw(); }
    }).observe(plot);
  }

  function compare(a, b) {
    if (a.number !== null && b.number !== null) return a.number - b.number;
    return a.text.localeCompare(b.text, "en", { numeric: true });
  }

  function sortBy(table, column, heading) {
    const numbers = table.querySelector(`tbody tr > :nth-child(${column + 1})[data-value]`) !== null;
    const first = numbers ? "descending" : "ascending";
    const second = numbers ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? second : first;
    for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", order);
    const rows = [...table.tBodies[0].rows].map((row) => {
      const cell = row.cells[column];
      const number = cell.dataset.value === undefined ? null : Number(cell.dataset.value);
      return { row, number, text: cell.textContent };
    });
    const sign = order === "ascending" ? 1 : -1;
    /* What has no number stays below, whichever way the numbers run. */
    const empty = (entry) => (numbers && entry.number === null ? 1 : 0);
    rows.sort((a, b) => empty(a) - empty(b) || sign * compare(a, b));
    table.tBodies[0].append(...rows.map((entry) => entry.row));
  }

  for (const table of document.querySelectorAll(".sortable")) {
    const headings = [...table.querySelectorAll("th[aria-sort]")];
    headings.forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, column, heading));
    });
  }

  const theme = document.getElementById("theme");
  const themes = ["automatic", "light", "dark"];
  let chosen = 0;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    chosen = (chosen + 1) % themes.length;
    theme.textContent = `Theme: ${themes[chosen]}`;
    if (chosen) document.documentElement.dataset.theme = themes[chosen];
    else delete document.documentElement.dataset.theme;
  });
})();
