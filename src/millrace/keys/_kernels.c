/* Spark's key hash, and the counting sort behind splitting, over Arrow buffers.
 *
 * Plain C called through ctypes by native.py, which checks types and lengths; fallback.py does the
 * same work in numpy, and tests hold the two equal. Nothing here allocates, keeps state or reads
 * outside the buffers it was given: offsets and partition numbers, which come from data, are
 * checked, and the first bad row is returned.
 *
 * The hash is Murmur3 x86 32-bit as Spark does it. Columns fold from left to right: `running` holds
 * one hash per row, is the seed of the next column, and is left as it is where the value is null.
 * For the first column `running` need not be set: its seed is 42.
 */
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && \
    __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CLONES
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

enum { SEED = 42, LANES = 64, GROUP_WORDS = 4, GROUP_BYTES = 16 };

INLINE uint32_t rotl(uint32_t x, int r) { return (x << r) | (x >> (32 - r)); }

INLINE uint32_t mix(uint32_t h, uint32_t k) {
    k = rotl(k * 0xcc9e2d51u, 15) * 0x1b873593u;
    return rotl(h ^ k, 13) * 5 + 0xe6546b64u;
}

INLINE uint32_t finish(uint32_t h, uint32_t bytes) {
    h ^= bytes;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

INLINE uint32_t hash_int(uint32_t value, uint32_t seed) { return finish(mix(seed, value), 4); }

INLINE uint32_t hash_long(uint64_t value, uint32_t seed) {
    return finish(mix(mix(seed, (uint32_t)value), (uint32_t)(value >> 32)), 8);
}

/* -0.0 counts as 0.0, and there is one NaN. */
INLINE uint32_t hash_float(float value, uint32_t seed) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = value == 0 ? 0 : bits;
    return hash_int(value != value ? 0x7fc00000u : bits, seed);
}

INLINE uint32_t hash_double(double value, uint32_t seed) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = value == 0 ? 0 : bits;
    return hash_long(value != value ? 0x7ff8000000000000u : bits, seed);
}

/* `count` (1 to 64) bits of a bitmap from bit `at` on; without a bitmap all are set. */
INLINE uint64_t load_bits(const uint8_t *bitmap, int64_t at, int64_t count) {
    if (!bitmap) return ~(uint64_t)0;
    const uint8_t *from = bitmap + (at >> 3);
    int shift = (int)(at & 7);
    int64_t bytes = (shift + count + 7) >> 3;
    uint64_t low = 0;
    memcpy(&low, from, (size_t)(bytes < 8 ? bytes : 8));
    low >>= shift;
    if (bytes == 9) low |= (uint64_t)from[8] << (64 - shift);
    return low;
}

#define FIXED_COLUMN(NAME, TYPE, HASH)                                                          \
    CLONES void NAME(const TYPE *values, const uint8_t *validity, int64_t bit, int64_t rows,     \
                     int32_t first, uint32_t *running) {                                        \
        if (!validity && first) {                                                               \
            for (int64_t i = 0; i < rows; i++) running[i] = HASH(values[i], SEED);              \
            return;                                                                             \
        }                                                                                       \
        if (!validity) {                                                                        \
            for (int64_t i = 0; i < rows; i++) running[i] = HASH(values[i], running[i]);        \
            return;                                                                             \
        }                                                                                       \
        for (int64_t start = 0; start < rows; start += LANES) {                                 \
            int64_t lanes = rows - start < LANES ? rows - start : LANES;                        \
            uint64_t valid = load_bits(validity, bit + start, lanes);                           \
            for (int64_t i = 0; i < lanes; i++) {                                               \
                uint32_t seed = first ? SEED : running[start + i];                              \
                uint32_t hash = HASH(values[start + i], seed);                                  \
                running[start + i] = (valid >> i) & 1 ? hash : seed;                            \
            }                                                                                   \
        }                                                                                       \
    }

FIXED_COLUMN(millrace_hash_int32, int32_t, hash_int)
FIXED_COLUMN(millrace_hash_int64, int64_t, hash_long)
FIXED_COLUMN(millrace_hash_float32, float, hash_float)
FIXED_COLUMN(millrace_hash_float64, double, hash_double)

/* Sixteen bytes of every value, `ahead` bytes into it. Reads into the values behind a short one,
 * never behind the data: what would lie there is left as it is.
 */
INLINE void load_groups(uint32_t (*group)[GROUP_WORDS], const uint8_t *data, int64_t data_bytes,
                        const int64_t *at, int64_t ahead) {
    if (at[LANES - 1] + ahead + GROUP_BYTES <= data_bytes) {
        for (int i = 0; i < LANES; i++) memcpy(group[i], data + at[i] + ahead, GROUP_BYTES);
        return;
    }
    for (int i = 0; i < LANES; i++) {
        int64_t have = data_bytes - at[i] - ahead;
        if (have > 0)
            memcpy(group[i], data + at[i] + ahead, (size_t)(have < GROUP_BYTES ? have : GROUP_BYTES));
    }
}

/* Hash LANES values side by side, so that the compiler can put them into vector lanes.
 *
 * Spark mixes whole little-endian words, then each byte left over as a sign-extended word of its
 * own. Each pass takes four words of every value. When few values are still going, they are ended
 * one by one. `at` ascends.
 */
INLINE void hash_lanes(const uint8_t *data, int64_t data_bytes, const int64_t *at,
                       const uint32_t *bytes, uint32_t *hash) {
    uint32_t group[LANES][GROUP_WORDS] = {{0}}, tail[LANES] = {0}, done = 0, going;
    for (;; done += GROUP_WORDS) {
        going = 0;
        for (int i = 0; i < LANES; i++) going += bytes[i] > done * 4;
        if (going < LANES / 16) break;
        load_groups(group, data, data_bytes, at, (int64_t)done * 4);
        for (int i = 0; i < LANES; i++) {
            uint32_t h = hash[i], t = tail[i], words = bytes[i] >> 2;
            h = words > done ? mix(h, group[i][0]) : h;
            t = words == done ? group[i][0] : t;
            h = words > done + 1 ? mix(h, group[i][1]) : h;
            t = words == done + 1 ? group[i][1] : t;
            h = words > done + 2 ? mix(h, group[i][2]) : h;
            t = words == done + 2 ? group[i][2] : t;
            h = words > done + 3 ? mix(h, group[i][3]) : h;
            t = words == done + 3 ? group[i][3] : t;
            hash[i] = h;
            tail[i] = t;
        }
    }
    for (int i = 0; going && i < LANES; i++) {
        if (bytes[i] <= done * 4) continue;
        const uint8_t *value = data + at[i];
        for (uint32_t word = done; word < bytes[i] >> 2; word++) {
            uint32_t k;
            memcpy(&k, value + (size_t)word * 4, 4);
            hash[i] = mix(hash[i], k);
        }
        memcpy(&tail[i], value + (bytes[i] & ~3u), bytes[i] & 3);
    }
    for (uint32_t b = 0; b < 3; b++)
        for (int i = 0; i < LANES; i++) {
            uint32_t byte = (uint32_t)(int32_t)(int8_t)(tail[i] >> (8 * b));
            hash[i] = (bytes[i] & 3) > b ? mix(hash[i], byte) : hash[i];
        }
    for (int i = 0; i < LANES; i++) hash[i] = finish(hash[i], bytes[i]);
}

/* Returns -1, or the first row of 64 among which offsets descend, lie outside the data or span
 * 2 GiB or more. */
#define BYTES_COLUMN(NAME, OFFSET)                                                              \
    CLONES int64_t NAME(const OFFSET *offsets, const uint8_t *data, int64_t data_bytes,          \
                        const uint8_t *validity, int64_t bit, int64_t rows, int32_t first,      \
                        uint32_t *running) {                                                    \
        int64_t at[LANES];                                                                      \
        uint32_t bytes[LANES], hash[LANES];                                                     \
        for (int64_t start = 0; start < rows; start += LANES) {                                 \
            int64_t lanes = rows - start < LANES ? rows - start : LANES;                        \
            uint64_t valid = load_bits(validity, bit + start, lanes);                           \
            for (int64_t i = lanes; i < LANES; i++) at[i] = data_bytes, bytes[i] = hash[i] = 0; \
            int bad = offsets[start] < 0 || offsets[start + lanes] > data_bytes;                \
            for (int64_t i = 0; i < lanes; i++) {                                               \
                OFFSET from = offsets[start + i], to = offsets[start + i + 1];                  \
                bad |= (to < from) | (sizeof(OFFSET) == 8 && to > from + INT32_MAX);            \
                at[i] = from;                                                                   \
                bytes[i] = (uint32_t)to - (uint32_t)from;                                       \
                hash[i] = first ? SEED : running[start + i];                                    \
            }                                                                                   \
            if (bad) return start;                                                              \
            hash_lanes(data, data_bytes, at, bytes, hash);                                      \
            for (int64_t i = 0; i < lanes; i++) {                                               \
                uint32_t seed = first ? SEED : running[start + i];                              \
                running[start + i] = (valid >> i) & 1 ? hash[i] : seed;                         \
            }                                                                                   \
        }                                                                                       \
        return -1;                                                                              \
    }

BYTES_COLUMN(millrace_hash_bytes32, int32_t)
BYTES_COLUMN(millrace_hash_bytes64, int64_t)

/* hash modulo partitions, never negative. With sign s (0 or -1), u = hash ^ s has 31 bits, and
 * u / partitions is (u * multiplier) >> shift, exactly, for the multiplier made below.
 */
#define PMOD(NAME, TYPE)                                                                        \
    CLONES void NAME(const int32_t *hash, int64_t rows, uint32_t partitions, TYPE *ids) {        \
        int shift = 31;                                                                         \
        while (((uint64_t)1 << (shift - 31)) < partitions) shift++;                             \
        uint64_t multiplier = (((uint64_t)1 << shift) + partitions - 1) / partitions;           \
        for (int64_t i = 0; i < rows; i++) {                                                    \
            uint32_t sign = hash[i] < 0 ? ~(uint32_t)0 : 0;                                     \
            uint32_t u = (uint32_t)hash[i] ^ sign;                                              \
            uint32_t rest = u - (uint32_t)((u * multiplier) >> shift) * partitions;             \
            ids[i] = (TYPE)(sign ? partitions - 1 - rest : rest);                               \
        }                                                                                       \
    }

PMOD(millrace_pmod_uint16, uint16_t)
PMOD(millrace_pmod_int32, int32_t)

/* Rows ordered by partition, in input order within each: partition p's rows are
 * order[offsets[p]] to order[offsets[p + 1] - 1]. Returns -1, or the first row whose partition
 * is not below `partitions`. `offsets` has partitions + 1 places.
 */
int64_t millrace_group_rows(const uint16_t *ids, int64_t rows, int64_t partitions,
                            int64_t *offsets, int32_t *order) {
    memset(offsets, 0, (size_t)(partitions + 1) * sizeof *offsets);
    for (int64_t i = 0; i < rows; i++) {
        if (ids[i] >= partitions) return i;
        offsets[ids[i] + 1]++;
    }
    for (int64_t p = 0; p < partitions; p++) offsets[p + 1] += offsets[p];
    for (int64_t i = 0; i < rows; i++) order[offsets[ids[i]]++] = (int32_t)i;
    memmove(offsets + 1, offsets, (size_t)partitions * sizeof *offsets);
    offsets[0] = 0;
    return -1;
}
