"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Tables: a heading sorts the rows that are no pooled reference; a missing value comes last.
function sortBy(heading) {
  const table = heading.closest("table"), column = heading.cellIndex;
  const descending = heading.ariaSort === "ascending" || (!heading.ariaSort && column > 2);
  if (heading.ariaSort === "descending") heading.ariaSort = "ascending";
  else heading.ariaSort = descending ? "descending" : "ascending";
  for (const other of heading.parentElement.children) if (other !== heading) other.removeAttribute("aria-sort");
  const sign = heading.ariaSort === "descending" ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [one, other].map((row) => row.cells[column].dataset.value);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const [x, y] = [a, b].map((text) => (text === "inf" ? Infinity : Number(text)));
    if (Number.isNaN(x) || Number.isNaN(y)) return sign * a.localeCompare(b, "en", { numeric: true });
    return x === y ? 0 : sign * (x - y);
  };
  for (const body of all("tbody.sortable", table)) body.append(...[...body.rows].sort(compare));
}
for (const button of all("thead button")) button.addEventListener("click", () => sortBy(button.closest("th")));

// A box that does not scroll is no place to stop at for the keyboard.
const boxes = new ResizeObserver((entries) => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
for (const box of all(".box")) boxes.observe(box);

// A hint beside a place of its box, in pixels.
function show(tip, text, x, y) {
  const box = tip.parentElement;
  tip.textContent = text;
  tip.hidden = false;
  const after = x + 14 + tip.offsetWidth <= box.clientWidth;
  tip.style.left = `${Math.max(0, after ? x + 14 : x - 14 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.max(0, Math.min(y + 10, box.clientHeight - tip.offsetHeight))}px`;
}

// Charts: the mark nearest the pointer says what it is.
for (const plot of all(".plot")) {
  const svg = plot.querySelector("svg"), tip = plot.querySelector(".tip");
  const marks = all("[data-tip]", svg).map((mark) => ({ text: mark.dataset.tip, x: Number(mark.dataset.x), y: Number(mark.dataset.y) }));
  plot.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 18;
    for (const mark of marks) {
      const distance = Math.hypot(x - scale * mark.x, y - scale * mark.y);
      if (distance < least) [best, least] = [mark, distance];
    }
    if (best) show(tip, best.text, x, y);
    else tip.hidden = true;
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const hint of all(".tip, .map .ring")) hint.hidden = true;
});

// A choice of guarantees leaves the rows that have them, and the pooled references.
for (const choice of all("[data-filter]"))
  choice.addEventListener("change", () => {
    for (const row of all(".sortable tr", choice.closest("section")))
      row.hidden = choice.value !== "" && ![choice.value, "rows pooled"].includes(row.dataset.guarantee);
  });

// Printed, everything that is folded but lists of numbers is open.
addEventListener("beforeprint", () => { for (const part of all("#privacy > details, #failures > details, .doubts")) part.open = true; });

// Maps.
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const dark = matchMedia("(prefers-color-scheme: dark)");
// Colors are made darker on white, and lighter on a dark page, as far as marks need to stand out (WCAG 2, 3 to 1).
const readable = (color) => `oklch(from ${color} ${dark.matches ? "max(l, 0.58)" : "min(l, 0.64)"} c h)`;
const colorsOf = (grouping) => grouping.colors.map(readable);
const maps = JSON.parse(document.getElementById("content").textContent).map((content) => {
  const canvas = document.querySelector(`[data-map="${content.id}"]`);
  const map = {
    canvas, box: canvas.parentElement, legend: document.querySelector(`[data-legend="${content.id}"]`),
    choice: document.querySelector(`[data-colors="${content.id.replace(/-map-\d+$/, "")}"]`),
    places: new Uint16Array(bytes(content.places)), numbers: new Uint32Array(bytes(content.numbers)),
    groupings: content.groupings.map((one) => ({ ...one, codes: new Uint16Array(bytes(one.codes)) })), row: -1,
  };
  map.size = map.numbers.length;
  // Rows are drawn in a random order (the same each time), so that no group covers another.
  map.order = Uint32Array.from({ length: map.size }, (_, row) => row);
  let seed = 1;
  for (let last = map.size - 1; last > 0; last--) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const other = Math.floor((seed / 4294967296) * (last + 1));
    [map.order[last], map.order[other]] = [map.order[other], map.order[last]];
  }
  map.widest = [0, 1].map((axis) => map.places.reduce((most, value, at) => (at % 2 === axis ? Math.max(most, value) : most), 0));
  return map;
});
function placeOf(map, row) {
  const side = map.canvas.clientWidth, room = 0.04 * side, unit = (side - 2 * room) / 65535;
  const shift = map.widest.map((widest) => room + (unit * (65535 - widest)) / 2);
  return [shift[0] + unit * map.places[2 * row], side - shift[1] - unit * map.places[2 * row + 1]];
}
const groupingOf = (map) => map.groupings.find((one) => one.name === map.choice.value) ?? map.groupings[0];
function draw(map) {
  const side = map.canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (!side) return;
  map.canvas.width = map.canvas.height = Math.round(side * ratio);
  const brush = map.canvas.getContext("2d"), grouping = groupingOf(map), colors = colorsOf(grouping);
  brush.scale(ratio, ratio);
  const radius = Math.max(1.3, Math.min(4.5, 75 / Math.sqrt(map.size)));
  for (const row of map.order) {
    const [x, y] = placeOf(map, row);
    brush.fillStyle = colors[grouping.codes[row]];
    brush.beginPath();
    brush.arc(x, y, radius, 0, 2 * Math.PI);
    brush.fill();
  }
  point(map, map.row);
}
function legend(map) {
  const grouping = groupingOf(map);
  map.legend.replaceChildren(...grouping.groups.map((group, code) => {
    const item = document.createElement("li"), swatch = document.createElement("i");
    swatch.style.background = colorsOf(grouping)[code];
    item.append(swatch, group);
    return item;
  }));
}
function point(map, row) {
  const tip = map.box.querySelector(".tip"), ring = map.box.querySelector(".ring");
  map.row = row;
  tip.hidden = ring.hidden = row < 0;
  if (row < 0) return;
  const [x, y] = placeOf(map, row);
  const lines = map.groupings.map((one) => `${one.name}: ${one.groups[one.codes[row]]}`);
  show(tip, [...lines, `row: ${map.numbers[row]}`].join("\n"), x, y);
  Object.assign(ring.style, { left: `${x}px`, top: `${y}px` });
}
function nearest(map, far) {
  let best = -1, least = Infinity;
  for (let row = 0; row < map.size; row++) {
    const distance = far(...placeOf(map, row), row);
    if (distance < least) [best, least] = [row, distance];
  }
  return best;
}
const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
for (const map of maps) {
  map.canvas.addEventListener("pointermove", (event) => {
    point(map, nearest(map, (x, y) => {
      const distance = Math.hypot(x - event.offsetX, y - event.offsetY);
      return distance < 14 ? distance : Infinity;
    }));
  });
  map.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== map.canvas) point(map, -1); });
  map.canvas.addEventListener("blur", () => point(map, -1));
  map.canvas.addEventListener("keydown", (event) => {
    const way = arrows[event.key];
    if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const middle = map.canvas.clientWidth / 2, from = map.row < 0 ? [middle, middle] : placeOf(map, map.row);
    // The next row in that direction: what lies to the side counts as farther away.
    const next = nearest(map, (x, y, row) => {
      const along = (x - from[0]) * way[0] + (y - from[1]) * way[1];
      const aside = Math.abs((x - from[0]) * way[1]) + Math.abs((y - from[1]) * way[0]);
      return row === map.row || along < 2 ? Infinity : along + 2 * aside;
    });
    if (next >= 0) point(map, next);
    else if (map.row < 0) point(map, 0);
    // Only the keyboard is answered in words: a pointer passes over hundreds of rows.
    map.box.querySelector("[role=status]").textContent = map.box.querySelector(".tip").textContent.replaceAll("\n", ", ");
  });
  new ResizeObserver(() => draw(map)).observe(map.canvas);
  legend(map);
}
function redraw() { for (const map of maps) { draw(map); legend(map); } }
for (const choice of all("[data-colors]")) choice.addEventListener("change", redraw);
dark.addEventListener("change", redraw);
