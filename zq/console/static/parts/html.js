// SPDX-License-Identifier: Apache-2.0
// How the page is written: htm's templates on Preact's elements. Text becomes text nodes, whatever it is.

import { h } from "preact";
import htm from "htm";

/** A template of elements: html`<p>${text}</p>`. */
export const html = htm.bind(h);
