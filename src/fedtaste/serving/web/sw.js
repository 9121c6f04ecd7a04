// The service worker: keeps the bundle's own files, all of one version, for offline use. What a person types is in no
// request, so it never passes here. Where storing the files fails, the page works online as before.
// A page never gets files of two versions: no page is claimed while it loads, and a new version waits until no page of
// the old one is open.
"use strict";

const VERSION = "{{version}}"; // the SHA-256 of manifest.json
const FILES = {{files}};
const OURS = `fedtaste ${self.registration.scope} `; // another bundle of this origin has another scope
const CACHE = OURS + VERSION;
const START = self.registration.scope;
const urls = new Set(FILES.map((name) => new URL(name, START).href));

async function digest(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function download(name, cache) {
  const response = await fetch(new URL(name, START), { cache, redirect: "error" });
  if (!response.ok) throw new Error(`${name} was answered with ${response.status}`);
  return { name, response: response.clone(), bytes: await response.arrayBuffer() };
}

/** Refuses a mixture of versions: checks the manifest, the hash of every file, and that the page belongs to them. */
async function check(files) {
  const text = (name) => new TextDecoder().decode(files.find((file) => file.name === name).bytes);
  const pins = JSON.parse(text("manifest.json")).files;
  const own = await digest(files.find((file) => file.name === "manifest.json").bytes);
  if (hex(own) !== VERSION) throw new Error("manifest.json is of another version");
  if (!text("./").includes(btoa(String.fromCharCode(...own)))) throw new Error("index.html is of another version");
  for (const { name, bytes } of files) {
    if (name === "./" || name === "manifest.json") continue;
    if (hex(await digest(bytes)) !== pins[name]?.sha256) throw new Error(`${name} is of another version`);
  }
}

/** Loads all files: from the browser's cache, or from the server where the cache holds another version. */
async function gather() {
  for (const from of ["force-cache", "reload"]) {
    const files = await Promise.all(FILES.map((name) => download(name, from)));
    try {
      await check(files);
      return files;
    } catch (error) {
      if (from === "reload") throw error;
    }
  }
}

async function keep() {
  const files = await gather();
  const cache = await caches.open(CACHE);
  try {
    await Promise.all(files.map(({ name, response }) => cache.put(new URL(name, START), response)));
  } catch (error) {
    await caches.delete(CACHE);
    throw error;
  }
}

async function forget() {
  const old = (await caches.keys()).filter((name) => name.startsWith(OURS) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
}

/** The stored file; from the network where the browser has deleted it. */
async function serve(url, request) {
  const kept = await (await caches.open(CACHE)).match(url, { ignoreVary: true });
  return kept ?? fetch(request);
}

self.addEventListener("install", (event) => event.waitUntil(keep()));
self.addEventListener("activate", (event) => event.waitUntil(forget()));
self.addEventListener("fetch", (event) => {
  const { request } = event, url = new URL(request.url);
  const place = url.origin + url.pathname;
  if (request.method !== "GET") return;
  if (request.mode === "navigate") {
    if (place === START || place === `${START}index.html`) event.respondWith(serve(START, request));
  } else if (urls.has(request.url)) event.respondWith(serve(request.url, request));
});
