#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue. ARGV: now, ids. Returns those of them that live, in this order: records with bodies.

local q, ids = queue_at(4), {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
return answer_with(with_bodies(q, locate(q, ids, tonumber(ARGV[1])), math.huge), {})
