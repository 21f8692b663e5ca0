// SPDX-License-Identifier: Apache-2.0
// Who asks, and how he wants it. The credential is gone with the tab; only harmless wishes outlive it.

const PROJECTS = "zq.projects";
const WISHES = "zq.settings";
const TOKEN = "zq.token";
const SCHEME = "zq.scheme";
const CLIENT = "zq.client";

const listeners = new Set();

/** What was chosen in this browser. `theme`: "", "light" or "dark"; `keys`: whether single letters act; `charts`: of a queue are open. */
export const settings = { theme: "", utc: true, keys: true, live: true, charts: false, ...stored(WISHES, {}) };
settings.live = true;

/** Who asks, as the server knows him: the answer of /v2/me; null = not known yet. */
export const session = { me: null };

/** Whether the operator hides what changes anything. */
export const readOnly = document.documentElement.dataset.readOnly === "yes";

/** Where the operator's Grafana is; "": nowhere that this page knows. */
export const grafana = document.documentElement.dataset.grafana;

/** The version of the files of this page. */
export const tree = document.documentElement.dataset.tree;

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/**
 * Change what was chosen, and tell everybody.
 * @param {Partial<typeof settings>} wishes
 */
export function choose(wishes) {
  Object.assign(settings, wishes);
  localStorage.setItem(WISHES, JSON.stringify(settings));
  tell();
}

/** Tell everybody who listens that something of this module has changed. */
export function tell() {
  for (const listener of listeners) listener();
}

/**
 * @param {() => void} listener called after each change
 * @returns {() => void} ends it
 */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @returns {string[]} the projects that were opened last in this browser */
export function projects() {
  const found = stored(PROJECTS, []);
  return Array.isArray(found) ? found.filter((name) => typeof name === "string") : [];
}

/** @param {string} project was opened */
export function remember(project) {
  const others = projects().filter((name) => name !== project);
  localStorage.setItem(PROJECTS, JSON.stringify([project, ...others].slice(0, 5)));
}

/** @returns {Record<string, string>} the headers that say who asks */
export function credentials() {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { "Client-ID": client() };
  if (!token) return headers;
  const name = sessionStorage.getItem(SCHEME) === "keystone" ? "X-Auth-Token" : "Authorization";
  return { ...headers, [name]: name === "Authorization" ? `Bearer ${token}` : token };
}

/**
 * @param {string} token
 * @param {string} challenge what the server said it takes
 */
export function signIn(token, challenge) {
  sessionStorage.setItem(TOKEN, token);
  sessionStorage.setItem(SCHEME, /^keystone/i.test(challenge) ? "keystone" : "bearer");
}

/** Forget the credential. */
export function signOut() {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(SCHEME);
  session.me = null;
  tell();
}

/** @returns {boolean} whether there is a credential to forget */
export function signedIn() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/**
 * @param {string} rule as queues:purge
 * @returns {boolean} whether the caller may do that to something
 */
export function may(rule) {
  return session.me === null || session.me.rules.includes(rule);
}

/** @returns {string} the id of this tab, under which it posts */
export function client() {
  const known = sessionStorage.getItem(CLIENT);
  if (known) return known;
  const digits = [...crypto.getRandomValues(new Uint8Array(16))];
  const made = digits.map((digit) => digit.toString(16).padStart(2, "0")).join("");
  sessionStorage.setItem(CLIENT, made);
  return made;
}
