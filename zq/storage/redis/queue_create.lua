#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Creates a queue. KEYS: project, queue. ARGV: name, metadata. Returns 1; 0, and nothing changed, if it exists.

if redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
create(queue_at(4), ARGV[1], ARGV[2])
return 1
