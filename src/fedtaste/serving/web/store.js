// Stores the list on this device, only if the person asks for it. Where the browser denies storage, nothing is stored.

const KEY = `fedtaste:${new URL(".", location.href).pathname}`;

/** What was stored, or null. */
export function recall() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null;
  }
}

/** Stores it; returns whether the browser allowed it. */
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
