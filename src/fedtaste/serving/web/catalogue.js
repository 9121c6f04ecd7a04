// The catalogue: shows and searches titles, and recognises them in imported lists.

const ARTICLE = "the|a|an|le|la|les|l'|un|une|der|die|das|ein|eine|el|los|las|il|lo|gli|het|den|det";
const TRAILING = new RegExp(`^(.+), (${ARTICLE})$`, "i");
const LEADING = new RegExp(`^(?:${ARTICLE.replace("l'|", "")}) (?=.)`);
const LONGEST = 120;
const YEAR = /\s*\((\d{4})\)\s*$/;
const ASIDE = /\s*\(([^()]*)\)\s*$/;
const LETTERS = { "ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ß": "ss", "&": " and " };

/** Lower case without accents, words separated by one space, nothing else. */
export function fold(text) {
  return text.toLowerCase().normalize("NFKD").replace(/\p{M}/gu, "").replace(/[øłđæœß&]/g, (c) => LETTERS[c])
    .replace(/['’`´]/g, "").replace(/[^\p{L}\p{N}]+/gu, " ").trim();
}

const bare = (folded) => folded.replace(LEADING, "");

/** "Lion King, The" -> "The Lion King" */
function turned(text) {
  const found = TRAILING.exec(text);
  if (!found) return text;
  return found[2].endsWith("'") ? found[2] + found[1] : `${found[2]} ${found[1]}`;
}

/** A text as it is shown: cut where it is too long to read. */
const short = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

/** A title in its parts: name, other names in brackets, year (or null). */
export function parts(title) {
  const year = YEAR.exec(title);
  let name = year ? title.slice(0, year.index) : title.trim();
  const others = [];
  for (let found = ASIDE.exec(name); found && found.index > 0; found = ASIDE.exec(name)) {
    others.unshift(turned(found[1]));
    name = name.slice(0, found.index);
  }
  return { name: turned(name), others, year: year ? Number(year[1]) : null };
}

/** The pair of letters that ends at `i`, as a number. */
const pair = (text, i) => text.charCodeAt(i - 1) * 8191 + text.charCodeAt(i);

/** Genres with a colour of their own; the rest share one. */
export const KINDS = 8;

/** The items of every key, from the keys of every item. */
function grouped(keys) {
  const items = new Map();
  for (const [item, own] of keys.entries()) {
    for (const key of new Set(own)) items.set(key, [...(items.get(key) ?? []), item]);
  }
  return items;
}

/** A colour for every main genre and the legend: the most frequent genres have their own colour. */
function colouring(genres, genreNames) {
  const counts = genreNames.map(() => 0);
  for (const [main] of genres) if (main !== undefined) counts[main] += 1;
  const top = [...counts.keys()].filter((genre) => counts[genre]).sort((a, b) => counts[b] - counts[a]).slice(0, KINDS);
  const colours = Uint8Array.from(genres, ([main]) => (top.includes(main) ? top.indexOf(main) : KINDS));
  const legend = top.map((genre) => short(genreNames[genre]));
  return { colours, legend: colours.includes(KINDS) && legend.length ? [...legend, "other"] : legend };
}

export class Catalogue {
  constructor(items, popularity) {
    this.names = items.names;
    this.titles = items.titles;
    this.genres = items.genres;
    this.genreNames = items.genre_names;
    this.popularity = popularity;
    Object.assign(this, colouring(items.genres, items.genre_names));
    this.parts = items.titles.map(parts);
    this.keys = this.parts.map((part) => bare(fold(part.name)));
    this.texts = this.parts.map(({ name, others, year }) => ` ${fold([name, ...others].join(" "))} ${year ?? ""} `);
    this.byName = new Map(items.names.map((name, item) => [name, item]));
    this.byTitle = grouped(items.titles.map((title) => [title]));
    this.byKey = grouped(this.parts.map(({ others }, item) => [this.keys[item], ...others.map((o) => bare(fold(o)))]));
    this.median = Uint8Array.from(popularity).sort()[Math.floor(popularity.length / 2)];
  }

  get size() {
    return this.titles.length;
  }

  /** The title as one reads it: articles in front, without the year. */
  name(item) {
    const { name, others } = this.parts[item];
    return short(others.length ? `${name} (${others.join(", ")})` : name);
  }

  year(item) {
    return this.parts[item].year ? String(this.parts[item].year) : "";
  }

  /** Name and year, for sentences. */
  full(item) {
    const year = this.year(item);
    const name = short(this.parts[item].name);
    return year ? `${name} (${year})` : name;
  }

  genre(number) {
    return short(this.genreNames[number]);
  }

  kinds(item, most = Infinity) {
    return short(this.genres[item].slice(0, most).map((genre) => this.genreNames[genre]).join(", "));
  }

  /** "little known" for the lesser known half. */
  fame(item) {
    return this.popularity[item] < this.median ? "little known" : "";
  }

  /** Items that hold every word of the query, the best first. */
  search(query) {
    const folded = fold(query);
    const key = bare(folded);
    if (!key) return [];
    const words = key.split(" ");
    const found = [];
    for (let item = 0; item < this.size; item++) {
      const text = this.texts[item];
      if (!words.every((word) => text.includes(word))) continue;
      const own = this.keys[item];
      let grade = words.every((word) => text.includes(` ${word}`)) ? 2 : 3;
      if (own === key) grade = 0;
      else if (own.startsWith(key)) grade = 1;
      found.push([grade, item]);
    }
    found.sort((a, b) => a[0] - b[0] || this.popularity[b[1]] - this.popularity[a[1]] || a[1] - b[1]);
    return found.map(([, item]) => item);
  }

  /** The items whose names look most like this one (shared pairs of letters), if any does. */
  closest(name, n = 1) {
    const key = bare(fold(parts(name).name));
    const wanted = new Set(Array.from({ length: Math.max(0, key.length - 1) }, (_, i) => pair(key, i + 1)));
    if (!wanted.size) return [];
    const found = [];
    for (let item = 0; item < this.size; item++) {
      const own = this.keys[item];
      let shared = 0;
      for (let i = 1; i < own.length; i++) {
        if (wanted.has(pair(own, i))) shared += 1;
      }
      const likeness = (2 * shared) / (own.length - 1 + wanted.size);
      if (likeness >= 0.6) found.push([likeness, item]);
    }
    found.sort((a, b) => b[0] - a[0] || this.popularity[b[1]] - this.popularity[a[1]]);
    return found.slice(0, n).map(([, item]) => item);
  }

  /**
   * The items that a text names, by the rule of fedtaste/serving/titles.py: the item of this name, else those of this
   * title, else those of this title in other letters, with a year only those of that year or of the one beside it.
   */
  matches(text, givenYear = null, named = true) {
    if (named && this.byName.has(text)) return [this.byName.get(text)];
    if (this.byTitle.has(text)) return this.byTitle.get(text);
    const part = parts(text);
    const year = givenYear ?? part.year;
    const keys = [part.name, ...part.others].map((name) => bare(fold(name)));
    const gap = (item) => (year && this.parts[item].year ? Math.abs(this.parts[item].year - year) : 0);
    const found = [...new Set(keys.flatMap((key) => (key && this.byKey.get(key)) || []))];
    const nearest = found.reduce((best, item) => Math.min(best, gap(item)), 1);
    return found.filter((item) => gap(item) === nearest).sort((a, b) => a - b);
  }
}
