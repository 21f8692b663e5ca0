#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes one message. KEYS: project, queue, history if there is one. ARGV: now, id, claim or "", seconds of history.
-- Returns "" or, nothing being removed, "claimed" (by another claim) or "unheld" (though a claim was named).

local q, now, id, claim, h = queue_at(4), number(), argument(), argument(), history(number())
local found = locate(q, { id }, now)
local m = found[1]
if not m then return '' end
if pinned(q, found)[m.member] then return { 'claimed' } end
local live = m.claim ~= '' and m.ends > now
if live and m.claim ~= claim then return { 'claimed' } end
if claim ~= '' and not live then return { 'unheld' } end
finish(q, h, found, now, DELETED)
return ''
