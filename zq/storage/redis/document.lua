-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts on documents: zq.records. records.py draws what they keep. KEYS: documents, titles, ends.

local ANY = '*'
local DOCUMENT = '>I8I2'

-- The version of a packed document, "" if it is missing or has expired.
local function version_of(packed, now)
  if not packed then return '' end
  local expires, length, at = struct.unpack(DOCUMENT, packed)
  return (expires == 0 or expires > now) and string.sub(packed, at, at + length - 1) or ''
end

local function version_now(title, now) return version_of(redis.call('HGET', KEYS[1], title), now) end
