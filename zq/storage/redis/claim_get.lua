#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue. ARGV: now, claim. Returns all that the live claim holds: records with bodies.

local q = queue_at(4)
return answer_with(with_bodies(q, held(q, ARGV[2], tonumber(ARGV[1])), math.huge), {})
