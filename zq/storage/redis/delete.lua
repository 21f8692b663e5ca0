#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes one message. KEYS: project, queue. ARGV: now, id, claim or "".
-- Returns "" or, nothing being removed, "claimed" (by another claim) or "unheld" (though a claim was named).

local q, now, claim = queue_at(4), tonumber(ARGV[1]), ARGV[3]
local found = locate(q, { ARGV[2] }, now)
local m = found[1]
if not m then return '' end
local live = m.claim ~= '' and m.ends > now
if live and m.claim ~= claim then return 'claimed' end
if claim ~= '' and not live then return 'unheld' end
remove(q, found)
return ''
