// Remembering on this device, only if asked. Where the browser denies storage, the page goes on without.

const KEY = `tacit:${new URL(".", location.href).pathname}`;

/** What was remembered, or null. */
export function recall() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null;
  }
}

/** Keeps it; says whether the browser let us. */
export function keep(memory) {
  try {
    localStorage.setItem(KEY, JSON.stringify(memory));
    return true;
  } catch {
    return false;
  }
}

export function forget() {
  try {
    localStorage.removeItem(KEY);
  } catch {
    // Storage is denied: there is nothing to remove.
  }
}
