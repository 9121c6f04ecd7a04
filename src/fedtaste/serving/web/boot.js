// Starts the page: checks every file against its published hash before using it.
// A problem is shown in a sentence that names the file.

const FORMAT = "fedtaste-bundle-1";
const root = document.documentElement;
const CODE = /^(?!worker\.js|sw\.js).*\.(js|css)$/;
const NOT_DATA = /\.(js|css|md|html)$/;

/** An error that is shown to the person: a headline and an explanation. */
class Refusal extends Error {
  constructor(headline, text) {
    super(text);
    this.headline = headline;
  }
}

/** Shows a problem above the page. */
function warn(headline, text) {
  const box = document.getElementById("problem");
  const title = document.createElement("h2");
  title.textContent = headline;
  const body = document.createElement("p");
  body.textContent = text;
  box.replaceChildren(title, body);
  box.hidden = false;
}

/** Shows a problem instead of the page. */
function fail(headline, text) {
  warn(headline, text);
  for (const id of ["loading", "app", "theme", "skip"]) document.getElementById(id).hidden = true;
  root.dataset.state = "failed";
}

/** The base64 form that browsers check, of a hex SHA-256. */
function sri(hex) {
  const bytes = hex.match(/../g).map((pair) => parseInt(pair, 16));
  return `sha256-${btoa(String.fromCharCode(...bytes))}`;
}

async function fetched(name, options) {
  const response = await fetch(name, options);
  if (!response.ok) throw new TypeError(`${name}: ${response.status}`);
  return response.arrayBuffer();
}

/** Finds out why a file could not be loaded with its hash. */
async function diagnosis(name) {
  let response;
  try {
    response = await fetch(name, { cache: "no-store" });
  } catch {
    return new Refusal(
      `${name} could not be reached`,
      `The server of this page did not answer${navigator.onLine ? "" : ": this device seems to be offline"}. `
      + "Without this part nothing can be computed, so nothing was. Reload the page in a moment.");
  }
  if (!response.ok) {
    return new Refusal(
      `${name} is missing`,
      `This page needs a part that its server does not have (answer ${response.status}). Nothing was computed without `
      + "it. Reload the page; if this comes again, tell whoever publishes it.");
  }
  return new Refusal(
    `${name} was changed`,
    `This part of the page is not what was published: its fingerprint (SHA-256) differs. Nothing was computed with it. `
    + "Reload the page; if this comes again, tell whoever publishes it, and do not trust what it shows.");
}

/** Loads a file and checks its hash; if the browser's cache holds a stale copy, loads it again from the server. */
async function pinned(name, integrity, cache = "default") {
  try {
    return await fetched(name, { integrity, cache });
  } catch {
    try {
      return await fetched(name, { integrity, cache: "reload" });
    } catch {
      throw await diagnosis(name);
    }
  }
}

async function readManifest() {
  const integrity = document.querySelector('meta[name="fedtaste-manifest"]').content;
  const manifest = JSON.parse(new TextDecoder().decode(await pinned("manifest.json", integrity)));
  if (manifest.format === FORMAT) return manifest;
  const program = ["fedtaste", "tacit"].find((name) => manifest[name]); // tacit was its name until 0.7.0
  const writer = program ? `${program} ${manifest[program]}` : "an unknown program";
  throw new Refusal(
    "This bundle is of another version",
    `It was written by ${writer} in the format ${manifest.format}; this page reads ${FORMAT}. Nothing was computed. `
    + "Whoever publishes it should export it again with one version of fedtaste.");
}

/** Checks scripts and styles, from the cache that the browser has just filled: not every browser checks them itself. */
async function checkCode(manifest) {
  const names = Object.keys(manifest.files).filter((name) => CODE.test(name));
  await Promise.all(names.map((name) => pinned(name, sri(manifest.files[name].sha256), "force-cache")));
  const sheets = [...document.querySelectorAll("link[rel=stylesheet]")].map((link) => link.sheet);
  if (sheets.every((sheet) => sheet?.cssRules.length)) return;
  throw new Refusal("An older copy of a part was in the way", "It has been replaced: reload the page.");
}

async function readData(manifest) {
  const names = Object.keys(manifest.files).filter((name) => !NOT_DATA.test(name)).concat("worker.js");
  const total = names.reduce((sum, name) => sum + manifest.files[name].bytes, 0);
  const bar = document.getElementById("progress");
  bar.hidden = false;
  const pairs = await Promise.all(names.map(async (name) => {
    const bytes = await pinned(name, sri(manifest.files[name].sha256));
    bar.value += manifest.files[name].bytes / total;
    return [name, bytes];
  }));
  return Object.fromEntries(pairs);
}

async function start() {
  const manifest = await readManifest();
  const [files] = await Promise.all([readData(manifest), checkCode(manifest)]);
  const main = await import("./main.js");
  await main.start(manifest, files, fail);
}

const SURPRISE = "Something in this page does not work";

function surprise(error) {
  return "Nothing you picked has left this device. Reload the page; if this comes again, tell whoever publishes it: "
    + `${error?.message ?? error}`;
}

/** Shows errors of this page's own scripts, and not those of browser extensions. */
function overheard(error) {
  if (error?.stack?.includes(new URL(".", import.meta.url).href)) warn(SURPRISE, surprise(error));
}

addEventListener("error", (event) => overheard(event.error));
addEventListener("unhandledrejection", (event) => overheard(event.reason));
start().catch((error) => fail(error.headline ?? SURPRISE, error instanceof Refusal ? error.message : surprise(error)));
