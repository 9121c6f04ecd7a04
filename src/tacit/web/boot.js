// Starts the page: every part is held to its published fingerprint before anything is done with it.
// Whatever is wrong is said in a sentence that names the part.

const FORMAT = "tacit-bundle-1";
const root = document.documentElement;
const CODE = /^(?!worker\.js|sw\.js).*\.(js|css)$/;
const NOT_DATA = /\.(js|css|md|html)$/;

/** Something that a person is told: a headline and what it means. */
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

/** What is wrong with a part that could not be had with its fingerprint. */
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

/** A part with its fingerprint; a stale copy in the browser's cache gets a second chance from the server. */
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
  const integrity = document.querySelector('meta[name="tacit-manifest"]').content;
  const manifest = JSON.parse(new TextDecoder().decode(await pinned("manifest.json", integrity)));
  if (manifest.format === FORMAT) return manifest;
  throw new Refusal(
    "This bundle is of another version",
    `The page reads bundles of the format ${FORMAT}; this one says ${manifest.format}. They do not belong together, so `
    + "nothing was computed. Whoever publishes it should export it again with one version of tacit.");
}

/** Scripts and styles, out of the cache that the browser itself has just filled: it may be lenient with them. */
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

/** Errors of this page's own scripts are told; those of extensions and the like are not its business. */
function overheard(error) {
  if (error?.stack?.includes(new URL(".", import.meta.url).href)) warn(SURPRISE, surprise(error));
}

addEventListener("error", (event) => overheard(event.error));
addEventListener("unhandledrejection", (event) => overheard(event.reason));
start().catch((error) => fail(error.headline ?? SURPRISE, error instanceof Refusal ? error.message : surprise(error)));
