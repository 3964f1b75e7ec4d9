"use strict";
// Search, folding and sorting of the tables of quantities. Without it every row can be unfolded by hand.

const tables = [...document.querySelectorAll("table.quantities")];
const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
const folds = [...document.querySelectorAll("details.variable")];
const field = document.getElementById("find");
const found = document.getElementById("found");
const unfold = document.getElementById("unfold");
const nameOf = (row) => row.cells[0].textContent;
const names = new Set(rows.map(nameOf));

// What a search reads: the name, the method and the status of a row, and no numbers.
const wordsOf = new Map(
  rows.map((row) => [
    row,
    [...row.cells].filter((cell) => !cell.matches(".number")).map((cell) => cell.textContent.toLowerCase()).join(" "),
  ]),
);

// A quantity is found if any of its rows has every word; then all its rows are shown, in every section.
function matching(words) {
  const matches = (row) => words.every((word) => wordsOf.get(row).includes(word));
  return words.length ? new Set(rows.filter(matches).map(nameOf)) : names;
}

function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = matching(words);
  for (const row of rows) row.hidden = !kept.has(nameOf(row));
  for (const table of tables) {
    const empty = [...table.tBodies[0].rows].every((row) => row.hidden);
    (table.closest("details") ?? table.parentElement).hidden = empty;
  }
  setFolds(words.length > 0);
  found.textContent = words.length
    ? `${kept.size} of ${names.size} quantities found; the others are hidden.`
    : `All ${names.size} quantities are listed.`;
}

function setFolds(open) {
  for (const fold of folds) fold.open = open;
  unfold.textContent = open ? "Fold all" : "Unfold all";
}

// Numbers by size and texts by letters, with numbers in them by size.
const numberIn = (text) => Number(text.replace("inf", "Infinity"));
const byNumber = (one, two) => numberIn(one) - numberIn(two);
const byText = new Intl.Collator("en", { numeric: true }).compare;

// What each press of a column's button makes of its order; null is the order of the page.
const NEXT = { null: "ascending", ascending: "descending", descending: null };

function makeSortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const numeric = header.matches(".number");
    const textOf = (row) => row.cells[column].textContent;
    const unknown = original.filter((row) => numeric && Number.isNaN(numberIn(textOf(row))));
    const known = original.filter((row) => !unknown.includes(row));
    const compare = numeric ? byNumber : byText;
    const ascending = known.toSorted((one, two) => compare(textOf(one), textOf(two)));
    const orders = {
      null: original,
      ascending: [...ascending, ...unknown],
      descending: [...ascending.toReversed(), ...unknown],
    };
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    button.addEventListener("click", () => {
      const order = NEXT[header.getAttribute("aria-sort")];
      for (const other of headers) other.removeAttribute("aria-sort");
      if (order) header.setAttribute("aria-sort", order);
      body.append(...orders[order]);
    });
    header.replaceChildren(button);
  });
}

tables.forEach(makeSortable);
field.addEventListener("input", search);
unfold.addEventListener("click", () => setFolds(unfold.textContent === "Unfold all"));
found.textContent = `All ${names.size} quantities are listed.`;
document.getElementById("search").hidden = false;
