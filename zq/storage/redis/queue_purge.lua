#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes all messages and claims of a queue. KEYS: project, queue. Returns "".

redis.call('UNLINK', unpack(KEYS, 5, 12))
return ''
