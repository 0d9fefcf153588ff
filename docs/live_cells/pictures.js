// The pictures of a live cell: drawn from the numbers that the specification gave, anew whenever these change.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

function write(parent, x, y, words, more = {}) {
  element("text", { x, y, "dominant-baseline": "central", ...more }, parent).textContent = words;
}

function figure(width, height, label) {
  return element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
}

// A line from each query to each key that it looks at, as strong as its weight.
function drawLines(rows) {
  const [N, M] = [rows.length, rows[0].length];
  const [step, left, right] = [34, 70, 250];
  const height = step * Math.max(N, M);
  const drawn = figure(320, height, "Lines from queries to keys, as strong as the weights");
  const at = (index, count) => (height * (index + 0.5)) / count;
  rows.forEach((row, i) =>
    row.forEach((weight, j) => {
      const place = { x1: left, y1: at(i, N), x2: right, y2: at(j, M) };
      if (weight > 0) element("line", { ...place, class: `line${i % 6}`, "stroke-width": 1 + 5 * weight, opacity: Math.min(1, 0.15 + weight) }, drawn);
    }),
  );
  rows.forEach((_, i) => write(drawn, left - 8, at(i, N), `query ${i}`, { "text-anchor": "end" }));
  rows[0].forEach((_, j) => write(drawn, right + 8, at(j, M), `key ${j}`));
  return drawn;
}

const CELL = 36;

// The numbers of one matrix, which move to their places in another; what is lost fades, and so comes what is new.
function drawMoves(before, after) {
  const width = CELL * Math.max(before[0].length, after[0].length);
  const drawn = figure(width, CELL * Math.max(before.length, after.length), "Numbers that move from before to after");
  const places = new Map();
  after.forEach((row, i) => row.forEach((x, j) => x !== 0 && places.set(x, [i, j])));
  const moves = [];
  before.forEach((row, i) =>
    row.forEach((x, j) => moves.push([drawNumber(drawn, x, `row${i % 6}`), [i, j], places.get(x)])),
  );
  after.forEach((row, i) =>
    row.forEach((x, j) => x === 0 && moves.push([drawNumber(drawn, 0, "none"), undefined, [i, j]])),
  );
  place(moves, 0);
  return { drawn, move: (moment) => place(moves, moment) };
}

function drawNumber(drawn, x, colour) {
  const group = element("g", { class: "moves" }, drawn);
  element("rect", { x: 1, y: 1, width: CELL - 2, height: CELL - 2, rx: 3, class: colour }, group);
  write(group, CELL / 2, CELL / 2, String(x), { "text-anchor": "middle" });
  return group;
}

function place(moves, moment) {
  for (const [group, ...ends] of moves) {
    const [i, j] = ends[moment] ?? ends[1 - moment];
    group.style.transform = `translate(${CELL * j}px, ${CELL * i}px)`;
    group.style.opacity = ends[moment] ? 1 : 0;
  }
}

// A button that moves them there and back.
function moving(before, after) {
  const made = document.createElement("div");
  const { drawn, move } = drawMoves(before, after);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Shift the rows";
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const moved = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(moved));
    button.textContent = moved ? "Shift them back" : "Shift the rows";
    move(moved ? 1 : 0);
  });
  made.append(drawn, button);
  return made;
}

const [WIDE, HIGH] = [320, 150];

// A curve through the numbers of each row, over its columns; the line of 0 where it is among them.
function drawCurves(rows, across) {
  const numbers = rows.flat();
  const [low, high] = [Math.min(0, ...numbers), Math.max(0, ...numbers)];
  const y = (x) => 8 + ((HIGH - 30) * (high - x)) / (high - low || 1);
  const last = rows[0].length - 1;
  const drawn = figure(WIDE, HIGH, `A curve for each row, over the ${across}`);
  element("line", { x1: 8, x2: WIDE - 8, y1: y(0), y2: y(0), class: "zero" }, drawn);
  rows.forEach((row, i) => {
    const points = row.map((x, j) => [last ? 8 + ((WIDE - 16) * j) / last : WIDE / 2, y(x)]);
    element("polyline", { points: points.join(" "), class: `line${i % 6}` }, drawn);
    points.forEach(([cx, cy]) => element("circle", { cx, cy, r: 3, class: `line${i % 6}` }, drawn));
  });
  write(drawn, WIDE / 2, HIGH - 8, across, { "text-anchor": "middle" });
  return drawn;
}

const transposed = (rows) => rows[0].map((_, j) => rows.map((row) => row[j]));

// What is drawn as curves: rows, and what their columns count.
function curvesOf(show) {
  const heads = Object.keys(show).filter((name) => name.startsWith("head "));
  if (heads.length) return [heads.map((name) => show[name].at(-1)), "keys of the last query, a curve for each head"];
  if (show.slopes) return [transposed(show.slopes), "heads"];
  if (show.positions) return [transposed(show.positions), "distances, a curve for each column"];
  if (show.score && !show.weights) return [show.score, "keys, a curve for each query"];
  return undefined;
}

// The pictures of what a cell shows, none where the coloured tables are the picture.
function picturesOf(show) {
  const drawn = [];
  const curves = curvesOf(show);
  if (curves) drawn.push(drawCurves(...curves));
  if (show.weights?.length) drawn.push(drawLines(show.weights));
  if (show.before && show.after) drawn.push(moving(show.before, show.after));
  return drawn;
}
