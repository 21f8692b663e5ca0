-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that remove what has expired.

local left  -- how much more may be removed

-- What is due in a sorted set by expiry.
local function due(key, now)
  local found = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, left)
  left = left - #found
  return found
end

-- Removes answers to requests that are due; how many.
local function forget_answers(answers, windows, now)
  local told = due(windows, now)
  put('HDEL', answers, told)
  put('ZREM', windows, told)
  return #told
end

-- The earliest expiry in any of these sorted sets; 0 if they are empty.
local function earliest(...)
  local first = math.huge
  for _, key in ipairs({ ... }) do
    first = math.min(first, tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge))
  end
  return first < math.huge and first or 0
end
