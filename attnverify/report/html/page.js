"use strict";
// Everything here is an addition: without it the page is whole, only still.

const matrix = document.getElementById("matrix");
const body = matrix && matrix.tBodies[0];
const rows = body ? [...body.rows] : [];
const texts = rows.map((row) => [...row.cells].slice(0, 3).map((cell) => cell.textContent.toLowerCase()));
const names = new Set(texts.flat());

// A word is a part of a name; a whole name is that name alone, for float16 is also a part of bfloat16.
function filter() {
  const words = document.getElementById("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = document.getElementById("verdict").value;
  let shown = 0;
  rows.forEach((row, place) => {
    const said = words.every((word) => texts[place].some((text) => (names.has(word) ? text === word : text.includes(word))));
    const fits = said && (!verdict || row.dataset.verdicts.split(" ").includes(verdict));
    row.hidden = !fits;
    shown += fits;
  });
  document.getElementById("found").textContent = `${shown} of ${rows.length} rows`;
}

// Sorting: up, down, and back to the order of the run.
const value = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;

function compared(one, other) {
  const numbers = [Number(one), Number(other)];
  return numbers.some(Number.isNaN) ? one.localeCompare(other) : numbers[0] - numbers[1] || 0;
}

function sort(head, column) {
  const before = head.getAttribute("aria-sort");
  const now = before === "ascending" ? "descending" : before === "descending" ? null : "ascending";
  for (const other of matrix.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  const sorted = [...rows];
  if (now) {
    head.setAttribute("aria-sort", now);
    const way = now === "ascending" ? 1 : -1;
    sorted.sort((one, other) => way * compared(value(one, column), value(other, column)));
  }
  body.append(...sorted);
}

if (matrix) {
  document.querySelector(".controls").hidden = false;
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("text").addEventListener("input", filter);
  document.getElementById("verdict").addEventListener("change", filter);
  [...matrix.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, column));
    head.replaceChildren(button);
  });
}

// A failure that is named by the address is opened.
function open() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", open);
open();

// A page that was opened from a file has no clipboard of its own in every browser: then the line is selected.
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const line = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(line);
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(line.textContent);
      else if (!document.execCommand("copy")) throw new Error("no clipboard");
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
}

// The numbers of the maps: under the pointer, and by the arrow keys. They are read when they are first asked for.
const NAMES = ["row", "column"];

function framed(picture) {
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, words] of Object.entries({ class: "cursor", width: 1, height: 1 })) cursor.setAttribute(name, words);
  picture.append(cursor);
  return cursor;
}

function explorer(maps) {
  const data = JSON.parse(maps.dataset.numbers);
  const [height, width] = [data.actual.length, data.actual[0].length];
  const readout = maps.parentElement.querySelector(".readout");
  const cursors = [...maps.querySelectorAll("svg")].map(framed);
  const worst = maps.querySelector(".worst");
  const place = [Number(worst.getAttribute("y")), Number(worst.getAttribute("x"))];
  const show = () => {
    const [row, column] = place;
    for (const cursor of cursors) {
      cursor.setAttribute("x", column);
      cursor.setAttribute("y", row);
      cursor.setAttribute("visibility", "visible");
    }
    const at = place.map((number, axis) => `${data.axes[axis] || NAMES[axis]} ${number + data.origin[axis]}`).join(", ");
    const [expected, actual, ratio] = [data.expected, data.actual, data.ratio].map((plane) => plane[row][column]);
    readout.textContent = `${at}: expected ${expected}, actual ${actual}, error ${ratio}x of the bound`;
  };
  const go = (row, column) => {
    place[0] = Math.min(height - 1, Math.max(0, row));
    place[1] = Math.min(width - 1, Math.max(0, column));
    show();
  };
  const hide = () => {
    for (const cursor of cursors) cursor.setAttribute("visibility", "hidden");
    readout.textContent = "";
  };
  return { show, go, hide, place, height, width };
}

const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function explore(maps) {
  let made = null;
  const asked = () => (made ??= explorer(maps));
  for (const picture of maps.querySelectorAll("svg")) {
    picture.addEventListener("pointermove", (event) => {
      const [box, { height, width }] = [picture.getBoundingClientRect(), asked()];
      asked().go(Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width));
    });
    picture.addEventListener("pointerleave", () => document.activeElement !== maps && asked().hide());
  }
  maps.tabIndex = 0;
  maps.setAttribute("role", "application");
  maps.setAttribute("aria-label", "Heat maps. The arrow keys walk over the elements; their numbers are read out.");
  maps.addEventListener("focus", () => asked().show());
  maps.addEventListener("blur", () => asked().hide());
  maps.addEventListener("keydown", (event) => {
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = asked().place;
    asked().go(row + step[0], column + step[1]);
  });
}
document.querySelectorAll(".maps").forEach(explore);
