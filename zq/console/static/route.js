// SPDX-License-Identifier: Apache-2.0
// Addresses: all that one would send to a colleague is behind the #, and nothing else is.

import { useEffect, useRef, useState } from "preact/hooks";

// Milliseconds after which the address has what was typed.
const TYPED = 300;

/**
 * @typedef {{project: string, page: string, queue: string, topic: string, query: Record<string, string>}} Route
 *   `page`: "" = sign in, one of `PAGES`, "queue", "topic", or "nowhere"; `queue` and `topic`: whose page it is, else ""
 */

/** The pages of a project, as addresses and people name them. */
export const PAGES = [
  ["overview", "Overview"],
  ["queues", "Queues"],
  ["topics", "Topics"],
  ["claims", "Claims"],
  ["subscriptions", "Subscriptions"],
  ["jobs", "Jobs"],
  ["audit", "Audit"],
  ["server", "Server"],
  ["admin", "Administration"],
];

// The pages of one of them, by the pages that list them.
const ONE = { queues: "queue", topics: "topic" };

/**
 * @param {string} hash as "#/p/acme/queues/mail?state=all"
 * @returns {Route}
 */
export function parsed(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(search));
  const names = path.split("/").slice(1).map(decoded);
  const [mark = "", project = "", page = "overview", name = ""] = names;
  if (mark === "" && names.length < 2) return { project: "", page: "", queue: "", topic: "", query };
  const known = mark === "p" && project !== "" && PAGES.some(([each]) => each === page) && names.length <= (page in ONE ? 4 : 3);
  const one = name && known ? ONE[page] : "";
  return { project, page: known ? one || page : "nowhere", queue: one === "queue" ? name : "", topic: one === "topic" ? name : "", query };
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

/** As `to`, of a topic. */
export function toTopic(project, topic, query = {}) {
  return written(`#/p/${encodeURIComponent(project)}/topics/${encodeURIComponent(topic)}`, query);
}

/**
 * @param {Route} route of a page of one queue or one topic
 * @param {Record<string, string | undefined>} [query] what is empty is left out
 * @returns {string} the address of that page
 */
export function hrefOf(route, query = {}) {
  return route.topic ? toTopic(route.project, route.topic, query) : to(route.project, route.queue, query);
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

/**
 * Have the address follow what is typed, a moment later; who has left the page meanwhile is not led back to it.
 * @param {(text: string) => string} href the address with that text
 * @returns {(text: string) => void} to be told each text
 */
export function useTyped(href) {
  const timer = useRef(0);
  return (text) => {
    const [page] = location.hash.split("?");
    const follow = () => location.hash.split("?")[0] === page && go(href(text), true);
    clearTimeout(timer.current);
    timer.current = setTimeout(follow, TYPED);
  };
}
