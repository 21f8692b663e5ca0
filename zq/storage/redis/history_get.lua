#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue, history. ARGV: now, ids. Returns the latest record of each of them that has one, in this order.

local now, h, ids, places = number(), history(1), {}, {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
for _, place in ipairs(pick(h.latest, ids)) do
  if place then places[#places + 1] = place end
end
return tell_past(h, places, now)
