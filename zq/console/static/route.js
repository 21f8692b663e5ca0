// SPDX-License-Identifier: Apache-2.0
// Addresses: all that one would send to a colleague is behind the #, and nothing else is.

import { useEffect, useState } from "preact/hooks";

/**
 * @typedef {{project: string, page: string, queue: string, query: Record<string, string>}} Route
 *   `page`: "" = sign in, one of `PAGES`, "queue", or "nowhere"
 */

/** The pages of a project, as addresses and people name them. */
export const PAGES = [
  ["overview", "Overview"],
  ["queues", "Queues"],
  ["claims", "Claims"],
  ["subscriptions", "Subscriptions"],
  ["server", "Server"],
  ["admin", "Administration"],
];

/**
 * @param {string} hash as "#/p/acme/queues/mail?state=all"
 * @returns {Route}
 */
export function parsed(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(search));
  const names = path.split("/").slice(1).map(decoded);
  const [mark = "", project = "", page = "overview", queue = ""] = names;
  if (mark === "" && names.length < 2) return { project: "", page: "", queue: "", query };
  const known = mark === "p" && project !== "" && PAGES.some(([name]) => name === page) && names.length <= (page === "queues" ? 4 : 3);
  return { project, page: known ? (queue ? "queue" : page) : "nowhere", queue, query };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {string} project
 * @param {string} [queue]
 * @param {Record<string, string | undefined>} [query] what is empty is left out
 * @returns {string} what an href says
 */
export function to(project, queue = "", query = {}) {
  return written(`#/p/${encodeURIComponent(project)}/queues${queue ? `/${encodeURIComponent(queue)}` : ""}`, query);
}

function written(path, query) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return search ? `${path}?${search}` : path;
}

/**
 * @param {string} project
 * @param {string} page one of `PAGES`
 * @param {Record<string, string | undefined>} [query] what is empty is left out
 * @returns {string} what an href says
 */
export function at(project, page, query = {}) {
  return written(`#/p/${encodeURIComponent(project)}/${page}`, query);
}

/** @returns {Route} where the browser is */
export function useRoute() {
  const [route, setRoute] = useState(() => parsed(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parsed(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/**
 * Go to an address. `instead`: *back* does not return here.
 * @param {string} href
 * @param {boolean} [instead]
 */
export function go(href, instead = false) {
  if (instead) location.replace(href);
  else location.hash = href;
}
