#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Documents in the order of titles. KEYS: see document.lua. ARGV: now, from, to (as BYLEX takes them), how many titles
-- to look at. Returns the title to go on behind, "" at the end; titles and packed documents.

local titles = redis.call('ZRANGE', KEYS[2], ARGV[2], ARGV[3], 'BYLEX', 'LIMIT', 0, ARGV[4])
local found = { #titles == tonumber(ARGV[4]) and titles[#titles] or '' }
for _, title in ipairs(titles) do
  local packed = redis.call('HGET', KEYS[1], title)
  if version_of(packed, tonumber(ARGV[1])) ~= '' then
    found[#found + 1], found[#found + 2] = title, packed
  end
end
return found
