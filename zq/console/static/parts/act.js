// SPDX-License-Identifier: Apache-2.0
// Buttons that change something: hidden where the operator says so, without effect where the caller may not.

import { useState } from "preact/hooks";
import { may, readOnly, session } from "../session.js";
import { html } from "./html.js";

let announcer = () => {};

/** The one place that tells outcomes to those who do not see the page. */
export function Announcer() {
  const [said, setSaid] = useState({ text: "", error: false });
  announcer = (text, error = false) => setSaid({ text, error });
  const close = () => setSaid({ text: "", error: false });
  return html`<div class="announcer" aria-live="polite">
    ${said.text &&
    html`<div class=${said.error ? "said wrong" : "said"}>
      <span>${said.text}</span><button type="button" class="plain" aria-label="Close this note" onClick=${close}>×</button>
    </div>`}
  </div>`;
}

/**
 * Tell what has come of an act.
 * @param {string} text
 * @param {boolean} [error]
 */
export function announce(text, error = false) {
  announcer(text, error);
}

/** A button. `rule`: what the caller must be allowed; `when`: whether it makes sense now, else `why` says why not. */
export function Act({ rule, when = true, why = "", onClick, kind = "", children, submit = false, ...more }) {
  if (readOnly) return null;
  const allowed = may(rule);
  const reason = allowed ? (when ? "" : why) : `Your credential does not allow ${rule} in ${session.me?.project}.`;
  const usable = allowed && when;
  const act = (event) => {
    if (usable) return onClick?.(event);
    event.preventDefault();
    announce(reason, true);
  };
  return html`<button
    type=${submit ? "submit" : "button"}
    class=${kind}
    aria-disabled=${usable ? undefined : "true"}
    title=${reason || undefined}
    onClick=${act}
    ...${more}
  >
    ${children}
  </button>`;
}
