#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Hides what a topic has now, for the sweeper to remove. KEYS: the log. ARGV: topic, channel. Returns "".

local log, topic = log_at(1), ARGV[1]
if #fronts(log, topic, 0, 1) > 0 then
  redis.call('HSET', log.purged, topic, redis.call('HGET', log.counts, 'sequence'))
end
feed(ARGV[2], '')
return ''
