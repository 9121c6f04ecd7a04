// Reads and writes lists of titles as files: our own format and those of other services. Nothing is sent.

import { fold } from "./catalogue.js";
import { steps } from "./dom.js";

const LARGEST = 5_000_000;
const HEADERS = {
  title: ["title", "name", "movie", "film", "movie title", "film title", "movie name", "book", "song", "track", "item"],
  id: ["item", "const", "id", "item id", "movie id", "movieid", "itemid"],
  year: ["year", "release year", "released"],
  rating: ["your rating", "my rating", "rating", "stars", "user rating", "your score", "score"],
  liked: ["liked", "like"],
  date: ["timestamp", "date rated", "rated at", "watched date", "date", "time", "date read", "date added", "created"],
};
const YES = ["yes", "y", "true", "1", "like", "liked"];
const NO = ["no", "n", "false", "0", "dislike", "disliked"];

/** Why a file cannot be imported, in words for the person. */
export class ListError extends Error {}

export async function readList(file) {
  if (file.size > LARGEST) {
    throw new ListError(`It has ${(file.size / 1e6).toFixed(1)} MB; a list of titles has at most 5 MB.`);
  }
  return parseList(decoded(new Uint8Array(await file.arrayBuffer())));
}

function decoded(bytes) {
  const wide = { "255,254": "utf-16le", "254,255": "utf-16be" }[String(bytes.subarray(0, 2))];
  if (wide) return new TextDecoder(wide).decode(bytes);
  if (bytes.some((byte) => byte < 9 || (byte > 13 && byte < 32 && byte !== 27))) {
    throw new ListError("It is not text. A list is a CSV, JSON or text file with a title on every line.");
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Rows {title, id, year, rating, liked, date}, with the fields that the text has. */
export function parseList(text) {
  const body = text.replace(/^\uFEFF/, "").trim();
  if (!body) throw new ListError("It is empty.");
  const rows = fromJson(body) ?? fromTable(body) ?? body.split(/\r\n|\r|\n/).map((line) => ({ title: line.trim() }));
  const filled = rows.filter((row) => row.title || row.id);
  if (!filled.length) throw new ListError("There are no titles in it.");
  return filled;
}

function fromJson(body) {
  if (!/^[[{]/.test(body)) return null;
  let value;
  try {
    value = JSON.parse(body);
  } catch {
    return null;
  }
  const named = fromRequest(value);
  if (named) return named;
  const lists = Array.isArray(value) ? [value] : Object.values(value).filter(Array.isArray);
  if (!lists.length) throw new ListError("It is JSON, but there is no list in it.");
  if (lists.length > 1) {
    throw new ListError("There are several lists in it. Name them likes and dislikes, or keep the one with the titles.");
  }
  return lists[0].map(rowOfEntry);
}

/** The rows of an object with the fields of the API: likes, dislikes, ratings; null where it has none of them. */
function fromRequest(value) {
  const { likes, dislikes, ratings } = value;
  const rated = ratings !== null && typeof ratings === "object" && !Array.isArray(ratings);
  if (!Array.isArray(likes) && !Array.isArray(dislikes) && !rated) return null;
  const rows = (list, liked) => (Array.isArray(list) ? list.map((entry) => ({ ...rowOfEntry(entry), liked })) : []);
  const stars = Object.entries(rated ? ratings : {}).map(([title, rating]) => ({ title, rating: String(rating) }));
  return [...rows(likes, "yes"), ...rows(dislikes, "no"), ...stars];
}

function rowOfEntry(entry) {
  if (entry === null || typeof entry !== "object") return { title: String(entry ?? "") };
  const columns = columnsOf(Object.keys(entry));
  const values = Object.values(entry);
  return rowOf(columns ?? {}, values.map((cell) => (typeof cell === "object" ? "" : String(cell))));
}

function fromTable(body) {
  const text = body.replace(/^sep=.[\r\n]+/i, "");
  const first = text.split(/[\r\n]/, 1)[0];
  for (const separator of ["\t", ";", ","]) {
    const columns = columnsOf(cells(first, separator)[0]);
    if (columns) return cells(text, separator).slice(1).map((values) => rowOf(columns, values));
  }
  for (const separator of ["\t", ";", ","]) {
    const rows = cells(text, separator);
    const rated = rows.filter((row) => row.length > 1 && isNumber(row.at(-1)));
    if (rated.length < 0.9 * rows.length) continue;
    return rows.map((row) => ({ title: row.find((cell) => !isNumber(cell)) ?? row[0], rating: row.at(-1) }));
  }
  return null;
}

const numberOf = (cell) => Number(cell.replace(",", "."));
const isNumber = (cell) => cell.trim() !== "" && Number.isFinite(numberOf(cell));

/** Which column holds what, or null where no column has the name of a title or an id. */
function columnsOf(header) {
  const names = header.map((name) => fold(name));
  const columns = {};
  for (const [what, known] of Object.entries(HEADERS)) {
    const name = known.find((candidate) => names.includes(candidate));
    if (name) columns[what] = names.indexOf(name);
  }
  return columns.title === undefined && columns.id === undefined ? null : columns;
}

function rowOf(columns, values) {
  const cell = (at) => (values[at] ?? "").trim().replace(/^'('*[=+\-@\t\r])/, "$1");
  return Object.fromEntries(Object.entries(columns).map(([what, at]) => [what, cell(at)]));
}

/** The cells of separated text; quoted cells may hold separators and line ends. A quote that never ends is a letter. */
function cells(text, separator, quotes = true) {
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  const close = () => {
    row.push(cell);
    cell = "";
  };
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') cell += text[i++];
      else quoted = false;
    } else if (quotes && c === '"' && !cell.trim()) quoted = true;
    else if (c === separator) close();
    else if (c === "\n" || c === "\r") {
      close();
      if (row.length > 1 || row[0]) rows.push(row);
      row = [];
    } else cell += c;
  }
  if (quoted) return cells(text, separator, false);
  close();
  rows.push(row);
  return rows;
}

/** The date of a row in milliseconds, or null. */
function moment(text) {
  if (!text) return null;
  if (isNumber(text)) return Number(text) < 1e11 ? Number(text) * 1000 : Number(text);
  const time = Date.parse(text);
  return Number.isNaN(time) ? null : time;
}

/** The top of the scale that the ratings of a file are on; 1 where all of them are 0 or 1 and the model ranks. */
function topOf(ratings, { task, scale: [, own] }) {
  if (task === "ranking" && ratings.every((rating) => rating === 0 || rating === 1)) return 1;
  const highest = ratings.reduce((a, b) => Math.max(a, b), -Infinity);
  return [...(task === "ratings" ? [own] : []), ...(own < 5 ? [5] : []), 10, 100].find((top) => highest <= top)
    ?? Infinity;
}

/** How ratings are read as likes and dislikes: the rule of fedtaste/serving/opinions.py. */
export function ratingRule(top) {
  return top === 1 ? "Ratings of 0 and 1: 1 is a like, 0 a dislike."
    : `Ratings from 0 to ${top}: from ${top / 2} on a like, below that a dislike; 0 is no rating.`;
}

/** The value of a row on the model's scale; null for "no opinion given", undefined for "to be left out". */
function valueOf(row, manifest, top) {
  const liked = (row.liked ?? "").toLowerCase();
  const ranking = manifest.task === "ranking";
  if (YES.includes(liked)) return ranking ? 1 : null;
  if (NO.includes(liked)) return ranking ? 0 : null;
  if (row.liked !== undefined && row.rating === undefined) return undefined;
  if (row.rating === undefined) return ranking ? 1 : null;
  if (!isNumber(row.rating)) return undefined;
  const rating = numberOf(row.rating);
  const [low, high] = manifest.scale;
  const unrated = rating === 0 && (ranking ? top > 1 : low > 0);
  if (top === Infinity || rating < Math.min(low, 0) || unrated) return undefined;
  if (ranking) return rating >= top / 2 ? 1 : 0;
  const mapped = top === high ? rating : low + (rating / top) * (high - low);
  return steps(manifest).reduce((best, step) => (Math.abs(step - mapped) <= Math.abs(best - mapped) ? step : best));
}

/** The items that a row names. An id beside a title may be another service's, so its item must have that title. */
function itemsOf(row, catalogue) {
  const known = catalogue.byName.get(row.id);
  if (known !== undefined && (!row.title || catalogue.titles[known] === row.title)) return [known];
  const year = /^\d{4}$/.test(row.year ?? "") ? Number(row.year) : null;
  return row.title ? catalogue.matches(row.title, year, !row.id || row.id === row.title) : [];
}

/** Matches rows with the catalogue: picks [item, {value, time}], oldest first, and an account of what was left out. */
export function understand(rows, catalogue, manifest) {
  const ratings = rows.map((row) => row.rating ?? "").filter(isNumber).map(numberOf);
  const top = ratings.length ? topOf(ratings, manifest) : manifest.scale[1];
  const account = { rows: rows.length, leftOut: 0, rounded: 0, twice: 0, missing: [], several: [], top, rated: ratings.length > 0 };
  const picks = new Map();
  for (const row of rows) {
    const [item, ...others] = itemsOf(row, catalogue);
    if (item === undefined || others.length) {
      (others.length ? account.several : account.missing).push(row.title || row.id);
      continue;
    }
    const value = valueOf(row, manifest, top);
    if (value === undefined) {
      account.leftOut += 1;
      continue;
    }
    const exact = top === manifest.scale[1] && isNumber(row.rating ?? "") ? numberOf(row.rating) : value;
    if (manifest.task === "ratings" && exact !== value) account.rounded += 1;
    const pick = { value, time: moment(row.date) };
    const before = picks.get(item);
    if (before) account.twice += 1;
    if (before && (pick.time ?? 0) < (before.time ?? 0)) continue;
    picks.delete(item); // an item that comes twice counts where it stands last
    picks.set(item, pick);
  }
  const entries = [...picks];
  const likes = entries.filter(([, { value }]) => manifest.task === "ratings" || value === 1);
  account.timed = likes.length > 0 && likes.every(([, { time }]) => time !== null);
  if (account.timed) entries.sort((a, b) => (a[1].time ?? 0) - (b[1].time ?? 0));
  return { picks: entries, account };
}

/** A cell that a spreadsheet would compute gets an apostrophe, as in data/spreadsheets.py; reading removes it. */
const guarded = (text) => (/^'*[=+\-@\t\r]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)$/.test(text) ? `'${text}` : text);
const quoted = (text) => {
  const cell = guarded(text);
  return /[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
};

/** Our own file: a title, its name in the catalogue, and yes or no, or the stars. */
export function formatList(picks, catalogue, manifest) {
  const ranking = manifest.task === "ranking";
  const lines = [...picks].map(([item, { value }]) => {
    const last = ranking ? (value ? "yes" : "no") : String(value ?? "");
    return [quoted(catalogue.titles[item]), quoted(catalogue.names[item]), last].join(",");
  });
  return [`title,item,${ranking ? "liked" : "rating"}`, ...lines, ""].join("\r\n");
}
