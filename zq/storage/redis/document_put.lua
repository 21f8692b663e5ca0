#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Stores a document. KEYS: see document.lua. ARGV: now, title, expected version ("" = missing) behind "=", or "*";
-- when it expires or 0, the packed document. Returns 1; 0, and nothing changed, if the version is another one.

local title = ARGV[2]
if ARGV[3] ~= ANY and ARGV[3] ~= '=' .. version_now(title, tonumber(ARGV[1])) then return 0 end
redis.call('HSET', KEYS[1], title, ARGV[5])
redis.call('ZADD', KEYS[2], 0, title)
if ARGV[4] == '0' then
  redis.call('ZREM', KEYS[3], title)
else
  redis.call('ZADD', KEYS[3], ARGV[4], title)
end
return 1
