// SPDX-License-Identifier: Apache-2.0
// A field that takes the name of a queue, and offers the queues whose names contain its text.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api.js";
import { may } from "../session.js";
import { html } from "./html.js";

const OFFERED = 20;
// Milliseconds after the last key before the names are requested.
const TYPED = 300;

/** `more`: further attributes of the input; `kind`: "queues" or "topics". */
export function NameInput({ id, text, change, kind = "queues", ...more }) {
  const [names, setNames] = useState([]);
  useEffect(() => {
    const load = () => get(kind, { name: text, limit: OFFERED }).then((found) => setNames(found[kind].map(({ name }) => name)), () => {});
    const timer = may(`${kind}:get_all`) ? setTimeout(load, TYPED) : 0;
    return () => clearTimeout(timer);
  }, [text, kind]);
  return html`<input type="text" id=${id} list=${`${id}-names`} autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => change(event.target.value)} ...${more} />
    <datalist id=${`${id}-names`}>${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}
