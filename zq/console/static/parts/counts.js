// SPDX-License-Identifier: Apache-2.0
// Counts of many queues or topics, which are asked for one after the other.

import { useEffect, useRef } from "preact/hooks";
import { get } from "../api.js";
import { useLive } from "../live.js";

const EVERY = 1.25;
const AT_ONCE = 4;

/**
 * By path: what is known of it, and when; those that are not known first, then the oldest.
 * @param {string[]} paths of their stats
 * @returns {Map<string, any>} the counts, each with `at`: milliseconds
 */
export function useCounts(paths) {
  const known = useRef(new Map());
  const wanted = useRef(paths);
  wanted.current = paths;
  const load = async () => {
    const missing = wanted.current.filter((path) => !known.current.has(path));
    const oldest = wanted.current.toSorted((one, other) => known.current.get(one)?.at - known.current.get(other)?.at);
    for (const group of grouped(missing.length ? missing : oldest.slice(0, 1))) {
      await Promise.all(group.map((path) => look(known.current, path)));
    }
    return new Map(known.current);
  };
  const found = useLive(load, EVERY, []);
  const missing = paths.some((path) => !known.current.has(path));
  useEffect(() => {
    if (missing) found.again();
  }, [missing, found.at]);
  return found.value ?? new Map();
}

async function look(known, path) {
  const { messages } = await get(path);
  known.set(path, { ...messages, at: Date.now() });
}

function grouped(paths) {
  const groups = [];
  for (let at = 0; at < paths.length; at += AT_ONCE) groups.push(paths.slice(at, at + AT_ONCE));
  return groups;
}
