// The kernels themselves, included once for each instruction set: see kernels.h.
//
// Nothing of the C++ library is used here: its inline functions would be merged between the sets,
// and a machine without one of them would run the other's code. All floating-point operations are
// the IEEE ones of the element type, in the order in which they are written (the build forbids
// contraction), so vectors of any width give the same bytes.

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

namespace resilient_ps {
namespace {

const int64_t KEYS_AHEAD = 20;
const int64_t STATES_AHEAD = 16;
const int64_t ROWS_AHEAD = 12;
const int64_t MOVED_AHEAD = 16;
const int64_t WRITTEN_AHEAD = 6;  // of one group
const int64_t BLOCK_KEYS = 16;
const int64_t RING = 63;
const int64_t LINE_BYTES = 64;
const uint64_t LOW = 0xFFFFFFFFu;

inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// -- initial values: see initialisers.py

inline int64_t sum_of_four(uint64_t x) {
    return (int64_t)((x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + (x >> 48));
}

template <class T>
void fill_row(T* out, int64_t dim, uint64_t key, const int64_t* meta, const double* hyper) {
    const uint64_t golden = 0x9E3779B97F4A7C15ull;
    const double a = hyper[INIT_A], b = hyper[INIT_B];
    const int64_t kind = meta[INIT_KIND];
    if (kind <= 1) {
        for (int64_t i = 0; i < dim; i++) out[i] = (T)a;
        return;
    }
    uint64_t state = mix(key ^ (uint64_t)meta[SEED]);
    for (int64_t i = 0; i < dim; i++) {
        state += golden;
        uint64_t x = mix(state);
        if (kind == 2) {
            out[i] = (T)(a + b * ((double)(x >> 11) * 0x1p-53));
            continue;
        }
        int64_t total = sum_of_four(x);
        for (int more = 0; more < 2; more++) {
            state += golden;
            total += sum_of_four(mix(state));
        }
        out[i] = (T)(a * (((double)total - 12 * 32767.5) * 0x1p-16));
    }
}

// -- formulas: see steps.py. `h`: hyperparameters in the table's dtype.

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }

const int ADAM_RATE = 6, ADAM_ROOT = 7;

template <class T>
inline T shrunk(T x, T by) {
    T low = x < (T)0 - by ? x + by : (T)0;
    return !(x <= by) ? x - by : low;
}

template <class T, int FORMULA_NUMBER>
struct Step {  // of one element: `w` the value, `p` and `q` its state
    static inline void take(const T* h, T g, T& w, T& p, T& q) {
        if (FORMULA_NUMBER == SUM) {
            w = w + g;
        } else if (FORMULA_NUMBER == SGD) {
            w = w - h[0] * g;
        } else if (FORMULA_NUMBER == MOMENTUM) {
            p = h[1] * p + g;
            w = w - h[0] * p;
        } else if (FORMULA_NUMBER == NESTEROV) {
            p = h[1] * p + g;
            w = w - h[0] * (g + h[1] * p);
        } else if (FORMULA_NUMBER == ADAGRAD) {
            p = p + g * g;
            w = w - h[0] * g / (root(p) + h[1]);
        } else if (FORMULA_NUMBER == ADAM) {
            p = h[2] * p + h[4] * g;
            q = h[3] * q + h[5] * g * g;
            w = w - h[ADAM_RATE] * p / (root(q) / h[ADAM_ROOT] + h[1]);
        } else if (FORMULA_NUMBER == FTRL) {
            T old_root = root(q);
            q = q + g * g;
            T new_root = root(q);
            p = p + (g - (new_root - old_root) / h[0] * w);
            w = (T)0 - shrunk(p, h[2]) / ((h[1] + new_root) / h[0] + h[3]);
        }
    }
};

template <int FORMULA_NUMBER>
struct Step<int64_t, FORMULA_NUMBER> {  // integers can only be summed; they wrap around
    static inline void take(const int64_t*, int64_t g, int64_t& w, int64_t&, int64_t&) {
        w = (int64_t)((uint64_t)w + (uint64_t)g);
    }
};

template <int FORMULA_NUMBER>
struct SlotsOf {
    static const int count = FORMULA_NUMBER >= ADAM ? 2 : FORMULA_NUMBER >= MOMENTUM ? 1 : 0;
};

// `n` elements; a constant `n` becomes vectors without a loop.
template <class T, int F>
inline __attribute__((always_inline)) void step_run(
    const T* __restrict h, const T* __restrict grads, T* __restrict values, T* __restrict first,
    T* __restrict second, int64_t n) {
    const int slots = SlotsOf<F>::count;
    T rates[HYPERPARAMETERS];
    for (int i = 0; i < HYPERPARAMETERS; i++) rates[i] = h[i];
    T nothing = 0;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        T w = values[i];
        T p = slots > 0 ? first[i] : nothing;
        T q = slots > 1 ? second[i] : nothing;
        Step<T, F>::take(rates, grads[i], w, p, q);
        values[i] = w;
        if (slots > 0) first[i] = p;
        if (slots > 1) second[i] = q;
    }
}

// One row: whole lines of 64 bytes, then the rest in halves.
template <class T, int F>
inline __attribute__((always_inline)) void step_row(
    const T* h, const T* grads, T* values, T* first, T* second, int64_t dim) {
    const int64_t line = LINE_BYTES / (int64_t)sizeof(T);
    int64_t i = 0;
    for (; i + line <= dim; i += line)
        step_run<T, F>(h, grads + i, values + i, first + i, second + i, LINE_BYTES / sizeof(T));
    if (i + line / 2 <= dim) {
        step_run<T, F>(h, grads + i, values + i, first + i, second + i, LINE_BYTES / sizeof(T) / 2);
        i += line / 2;
    }
    if (sizeof(T) == 4 && i + line / 4 <= dim) {
        step_run<T, F>(h, grads + i, values + i, first + i, second + i, LINE_BYTES / sizeof(T) / 4);
        i += line / 4;
    }
    for (; i < dim; i++) step_run<T, F>(h, grads + i, values + i, first + i, second + i, 1);
}

inline double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

template <class T>
inline void set_adam_rates(T* steps, const double* hyper, T* h) {
    *steps = (T)(*steps + 1);
    int64_t count = (int64_t)*steps;
    h[ADAM_RATE] = (T)(hyper[0] / (1.0 - power(hyper[2], count)));
    h[ADAM_ROOT] = (T)sqrt(1.0 - power(hyper[3], count));
}

inline __attribute__((always_inline)) void copy_bytes(char* out, const char* from, int64_t bytes) {
    for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES, out += LINE_BYTES, from += LINE_BYTES)
        memcpy(out, from, LINE_BYTES);
    if (bytes & 32) {
        memcpy(out, from, 32);
        out += 32, from += 32;
    }
    if (bytes & 16) {
        memcpy(out, from, 16);
        out += 16, from += 16;
    }
    if (bytes & 8) {
        memcpy(out, from, 8);
        out += 8, from += 8;
    }
    if (bytes & 4) memcpy(out, from, 4);
}

// -- push

int locate(const Table& table, const uint64_t* keys, int64_t n, int32_t* rows, int32_t* following) {
    uint64_t* entries = table.entries;
    int64_t* meta = table.meta;
    const int64_t mask = table.entries_n - 1;
    const int64_t base = meta[BASE], begin = meta[LOCATED], indexable = meta[INDEXABLE];
    int64_t count = meta[ROWS];
    int64_t ring[RING + 1];
    for (int64_t i = begin; i < smaller(begin + KEYS_AHEAD, n); i++) {
        int64_t slot = (int64_t)(mix(keys[i]) & (uint64_t)mask);
        ring[i & RING] = slot;
        __builtin_prefetch(entries + 2 * slot, 1, 3);
    }
    for (int64_t i = begin; i < n; i++) {
        const uint64_t key = keys[i];
        int64_t slot = ring[i & RING];
        if (i + KEYS_AHEAD < n) {
            int64_t later = (int64_t)(mix(keys[i + KEYS_AHEAD]) & (uint64_t)mask);
            ring[(i + KEYS_AHEAD) & RING] = later;
            __builtin_prefetch(entries + 2 * later, 1, 3);
        }
        const uint64_t stamp = (uint64_t)(base + i) << 32;
        following[i] = 0;
        for (;;) {
            uint64_t word = entries[2 * slot + 1];
            if (word == 0) {
                if (count == indexable) {
                    meta[LOCATED] = i;
                    meta[ROWS] = count;
                    return INDEX_FULL;
                }
                count++;
                entries[2 * slot] = key;
                entries[2 * slot + 1] = stamp | (uint64_t)count;
                rows[i] = (int32_t)(count - 1);
                break;
            }
            if (entries[2 * slot] == key) {
                int64_t before = (int64_t)(word >> 32) - base;
                entries[2 * slot + 1] = stamp | (word & LOW);
                if (before < 0) {
                    rows[i] = (int32_t)((int64_t)(word & LOW) - 1);
                } else {
                    rows[i] = -1;
                    following[before] = (int32_t)i;
                }
                break;
            }
            slot = (slot + 1) & mask;
        }
    }
    meta[LOCATED] = n;
    meta[ROWS] = count;
    return DONE;
}

template <class T>
const T* sum_of_repeats(
    const T* grads, int64_t first, const int32_t* following, T* work, int64_t dim) {
    T* total = work + HYPERPARAMETERS;
    memcpy(total, grads + first * dim, dim * sizeof(T));
    for (int64_t i = following[first]; i > 0; i = following[i])
        step_row<T, SUM>(work, grads + i * dim, total, nullptr, nullptr, dim);
    return total;
}

template <class T>
__attribute__((noinline)) void create_row(
    T* row, uint64_t key, const int64_t* meta, const double* hyper) {
    fill_row(row, meta[DIM], key, meta, hyper);
    for (int64_t i = meta[DIM]; i < meta[STRIDE]; i++) row[i] = (T)hyper[INITIAL_STATE];
}

template <class T, int F>
void apply(
    const Table& table, const uint64_t* keys, int64_t from, int64_t to, const T* grads,
    const int32_t* rows, const int32_t* following) {
    const int64_t* meta = table.meta;
    const int64_t dim = meta[DIM], stride = meta[STRIDE], created_from = meta[CREATED];
    const int64_t lines = smaller((stride * (int64_t)sizeof(T) + LINE_BYTES - 1) / LINE_BYTES, 2);
    T* slab = (T*)table.slab;
    T* h = (T*)table.work;
    for (int64_t i = from; i < to; i++) {
        if (i + ROWS_AHEAD < to && rows[i + ROWS_AHEAD] >= 0) {
            const char* soon = (const char*)(slab + rows[i + ROWS_AHEAD] * stride);
            __builtin_prefetch(soon, 1, 3);
            if (lines > 1) __builtin_prefetch(soon + LINE_BYTES, 1, 3);
        }
        const int64_t row = rows[i];
        if (row < 0) continue;
        T* values = slab + row * stride;
        if (row >= created_from) {
            create_row(values, keys[i], meta, table.hyper);
            table.row_keys[row] = keys[i];
        }
        const T* gradient = grads + i * dim;
        if (following[i] != 0)
            gradient = sum_of_repeats(grads, i, following, h, dim);
        T* first = values + dim;
        if (F == ADAM) set_adam_rates(first + 2 * dim, table.hyper, h);
        step_row<T, F>(h, gradient, values, first, first + dim, dim);
    }
}

template <class T>
void apply_formula(
    const Table& table, const uint64_t* keys, int64_t from, int64_t to, const T* grads,
    const int32_t* rows, const int32_t* following) {
    switch (table.meta[FORMULA]) {
        case SUM: return apply<T, SUM>(table, keys, from, to, grads, rows, following);
        case SGD: return apply<T, SGD>(table, keys, from, to, grads, rows, following);
        case MOMENTUM: return apply<T, MOMENTUM>(table, keys, from, to, grads, rows, following);
        case NESTEROV: return apply<T, NESTEROV>(table, keys, from, to, grads, rows, following);
        case ADAGRAD: return apply<T, ADAGRAD>(table, keys, from, to, grads, rows, following);
        case ADAM: return apply<T, ADAM>(table, keys, from, to, grads, rows, following);
        case FTRL: return apply<T, FTRL>(table, keys, from, to, grads, rows, following);
    }
}

template <>
void apply_formula<int64_t>(
    const Table& table, const uint64_t* keys, int64_t from, int64_t to, const int64_t* grads,
    const int32_t* rows, const int32_t* following) {
    apply<int64_t, SUM>(table, keys, from, to, grads, rows, following);
}

template <class T>
int push_rows(
    const Table& table, const uint64_t* keys, int64_t n, const void* grads, int32_t* rows,
    int32_t* following) {
    int64_t* meta = table.meta;
    int full = locate(table, keys, n, rows, following);
    if (full != DONE) return full;
    if (meta[ROWS] > meta[ROOM]) return ROOM_FULL;
    apply_formula<T>(table, keys, 0, n, (const T*)grads, rows, following);
    meta[CREATED] = meta[ROWS];
    meta[BASE] += n;
    meta[LOCATED] = 0;
    return DONE;
}

template <class T>
void apply_rows(
    const Table& table, const uint64_t* keys, int64_t from, int64_t to, const void* grads,
    const int32_t* rows, const int32_t* following) {
    apply_formula<T>(table, keys, from, to, (const T*)grads, rows, following);
}

int load_rows(
    const Table& table, const uint64_t* keys, int64_t n, const char* source, int64_t row_bytes,
    int64_t stride_bytes, int32_t* rows, int32_t* following) {
    int64_t* meta = table.meta;
    int full = locate(table, keys, n, rows, following);
    if (full != DONE) return full;
    for (int64_t i = 0; i < n; i++)
        if (rows[i] < 0) return REPEATED;
    if (meta[ROWS] > meta[ROOM]) return ROOM_FULL;
    char* slab = (char*)table.slab;
    for (int64_t i = 0; i < n; i++) {
        if (i + ROWS_AHEAD < n)
            __builtin_prefetch(slab + rows[i + ROWS_AHEAD] * stride_bytes, 1, 3);
        table.row_keys[rows[i]] = keys[i];
        copy_bytes(slab + rows[i] * stride_bytes, source + i * row_bytes, row_bytes);
    }
    meta[CREATED] = meta[ROWS];
    meta[BASE] += n;
    meta[LOCATED] = 0;
    return DONE;
}

// -- pull: three stages, each a block of keys ahead of the next: look, find, copy

struct Finder {
    const uint64_t* keys;
    const uint64_t* entries;
    const char* slab;
    int64_t mask, row_bytes;
    int lines;
    int64_t ring[RING + 1];

    inline void look_ahead(int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            int64_t slot = (int64_t)(mix(keys[i]) & (uint64_t)mask);
            ring[i & RING] = slot;
            __builtin_prefetch(entries + 2 * slot, 0, 3);
        }
    }

    inline void find(int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            int64_t slot = ring[i & RING];
            uint64_t word = entries[2 * slot + 1];
            while (word != 0 && entries[2 * slot] != keys[i]) {
                slot = (slot + 1) & mask;
                word = entries[2 * slot + 1];
            }
            int64_t at = ((int64_t)(word & LOW) - 1) * row_bytes;
            ring[i & RING] = at;
            if (at < 0) continue;
            __builtin_prefetch(slab + at, 0, 3);
            if (lines > 1) __builtin_prefetch(slab + at + LINE_BYTES, 0, 3);
        }
    }
};

template <class T, int64_t FIXED_BYTES>
void pull_lines(const Table& table, const uint64_t* keys, int64_t n, T* out) {
    const int64_t* meta = table.meta;
    const int64_t dim = meta[DIM];
    const int64_t bytes = FIXED_BYTES ? FIXED_BYTES : dim * (int64_t)sizeof(T);
    Finder finder;
    finder.keys = keys;
    finder.entries = table.entries;
    finder.slab = (const char*)table.slab;
    finder.mask = table.entries_n - 1;
    finder.row_bytes = meta[STRIDE] * (int64_t)sizeof(T);
    finder.lines = bytes > LINE_BYTES ? 2 : 1;
    int64_t second = smaller(BLOCK_KEYS, n), third = smaller(2 * BLOCK_KEYS, n);
    finder.look_ahead(0, third);
    finder.find(0, second);
    for (int64_t first = 0; first < n; first += BLOCK_KEYS) {
        int64_t fourth = smaller(third + BLOCK_KEYS, n);
        finder.look_ahead(third, fourth);
        finder.find(second, third);
        for (int64_t i = first; i < second; i++) {
            int64_t at = finder.ring[i & RING];
            if (at >= 0)
                copy_bytes((char*)(out + i * dim), finder.slab + at, bytes);
            else
                fill_row(out + i * dim, dim, keys[i], meta, table.hyper);
        }
        second = third, third = fourth;
    }
}

template <class T>
void pull_rows(const Table& table, const uint64_t* keys, int64_t n, void* out) {
    int64_t bytes = table.meta[DIM] * (int64_t)sizeof(T);
    if (bytes == 64) return pull_lines<T, 64>(table, keys, n, (T*)out);
    return pull_lines<T, 0>(table, keys, n, (T*)out);
}

void rehash(
    const uint64_t* entries, int64_t size, uint64_t* larger, int64_t larger_n, int64_t rows_kept) {
    const uint64_t mask = (uint64_t)larger_n - 1;
    for (int64_t old = 0; old < size; old++) {
        int64_t ahead = old + KEYS_AHEAD;
        if (ahead < size && entries[2 * ahead + 1] != 0)
            __builtin_prefetch(larger + 2 * (mix(entries[2 * ahead]) & mask), 1, 3);
        uint64_t word = entries[2 * old + 1];
        if (word == 0 || (int64_t)(word & LOW) > rows_kept) continue;
        uint64_t key = entries[2 * old];
        uint64_t slot = mix(key) & mask;
        while (larger[2 * slot + 1] != 0) slot = (slot + 1) & mask;
        larger[2 * slot] = key;
        larger[2 * slot + 1] = word;
    }
}

void forget_stamps(uint64_t* entries, int64_t entries_n) {
    for (int64_t slot = 0; slot < entries_n; slot++) entries[2 * slot + 1] &= LOW;
}

// Calls `take(position, row)` for every key, with the number of its row, or -1.
template <class Take>
inline void each_row(
    const uint64_t* entries, int64_t entries_n, const uint64_t* keys, int64_t n, Take take) {
    const uint64_t mask = (uint64_t)entries_n - 1;
    uint64_t ring[RING + 1];
    for (int64_t i = 0; i < n + KEYS_AHEAD; i++) {
        if (i < n) {
            const uint64_t slot = mix(keys[i]) & mask;
            ring[i & RING] = slot;
            __builtin_prefetch(entries + 2 * slot, 0, 3);
        }
        const int64_t now = i - KEYS_AHEAD;
        if (now < 0 || now >= n) continue;
        uint64_t slot = ring[now & RING];
        uint64_t word = entries[2 * slot + 1];
        while (word != 0 && entries[2 * slot] != keys[now]) {
            slot = (slot + 1) & mask;
            word = entries[2 * slot + 1];
        }
        take(now, (int64_t)(word & LOW) - 1);
    }
}

void row_numbers(
    const uint64_t* entries, int64_t entries_n, const uint64_t* keys, int64_t n, int32_t* rows) {
    each_row(entries, entries_n, keys, n, [=](int64_t i, int64_t row) { rows[i] = (int32_t)row; });
}

void survey_rows(
    const uint64_t* words, int64_t n, uint64_t stamp, uint8_t* touched, int64_t rows) {
    const uint64_t least = stamp << 32;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t word = words[2 * i + 1];
        const int64_t row = (int64_t)(word & LOW) - 1;
        if (word >= least && row < rows) touched[row] = 1;
    }
}

// The states are anywhere in memory, as the entries are: they are asked for some keys ahead, too.
int64_t claim_rows(
    const uint64_t* entries, int64_t entries_n, const uint64_t* keys, int64_t n, uint32_t* rows,
    uint8_t* states, int64_t first, int64_t last) {
    int64_t count = 0;
    int64_t found[STATES_AHEAD];
    for (int64_t i = 0; i < STATES_AHEAD; i++) found[i] = -1;
    auto claim = [&](int64_t row) {
        if (row < 0 || states[row] != 0) return;
        states[row] = 1;
        rows[count++] = (uint32_t)row;
    };
    each_row(entries, entries_n, keys, n, [&](int64_t i, int64_t row) {
        int64_t& place = found[i % STATES_AHEAD];
        claim(place);
        place = row < first || row >= last ? -1 : row;
        if (place >= 0) __builtin_prefetch(states + place, 0, 3);
    });
    for (int64_t i = 0; i < STATES_AHEAD; i++) claim(found[(n + i) % STATES_AHEAD]);
    return count;
}

int64_t claim_located(
    const int32_t* numbers, int64_t n, uint32_t* rows, uint8_t* states, int64_t first,
    int64_t last) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i + STATES_AHEAD < n) {
            const int64_t later = numbers[i + STATES_AHEAD];
            if (later >= first && later < last) __builtin_prefetch(states + later, 0, 3);
        }
        const int64_t row = numbers[i];
        if (row < first || row >= last || states[row] != 0) continue;
        states[row] = 1;
        rows[count++] = (uint32_t)row;
    }
    return count;
}

// -- dense tables

template <class T, int F>
void step_blocks(const Dense& dense, const T* grads, const int64_t* blocks, int64_t blocks_n) {
    const int64_t line = dense.meta[LINE];
    const int64_t slot_size = (dense.elements + line - 1) / line * line;
    T* values = (T*)dense.values;
    T* state = (T*)dense.state;
    T* h = (T*)dense.work;
    for (int64_t i = 0; i < blocks_n; i++) {
        const int64_t at = blocks[i] * dense.block_elements;
        const int64_t n = smaller(dense.block_elements, dense.elements - at);
        if (F == ADAM) set_adam_rates(state + 2 * slot_size + blocks[i], dense.hyper, h);
        step_run<T, F>(h, grads, values + at, state + at, state + slot_size + at, n);
        grads += n;
    }
}

template <class T>
void push_blocks(const Dense& dense, const void* grads, const int64_t* blocks, int64_t n) {
    const T* g = (const T*)grads;
    switch (dense.meta[FORMULA]) {
        case SUM: return step_blocks<T, SUM>(dense, g, blocks, n);
        case SGD: return step_blocks<T, SGD>(dense, g, blocks, n);
        case MOMENTUM: return step_blocks<T, MOMENTUM>(dense, g, blocks, n);
        case NESTEROV: return step_blocks<T, NESTEROV>(dense, g, blocks, n);
        case ADAGRAD: return step_blocks<T, ADAGRAD>(dense, g, blocks, n);
        case ADAM: return step_blocks<T, ADAM>(dense, g, blocks, n);
        case FTRL: return step_blocks<T, FTRL>(dense, g, blocks, n);
    }
}

template <>
void push_blocks<int64_t>(const Dense& dense, const void* grads, const int64_t* blocks, int64_t n) {
    step_blocks<int64_t, SUM>(dense, (const int64_t*)grads, blocks, n);
}

template <class T>
void fill_rows(
    void* out, int64_t rows, int64_t first_row, const int64_t* meta, const double* hyper) {
    const int64_t dim = meta[DIM];
    for (int64_t row = 0; row < rows; row++)
        fill_row((T*)out + row * dim, dim, (uint64_t)(first_row + row), meta, hyper);
}

// -- grouping by shard

bool find_groups(
    const uint64_t* keys, int64_t n, int64_t shards, const int32_t* ranks, uint16_t* groups,
    int64_t* counts) {
    for (int64_t i = 0; i < n; i++) {
        int64_t group = (int64_t)(((mix(keys[i]) >> 32) * (uint64_t)shards) >> 32);
        if (ranks != nullptr) {
            group = ranks[group];
            if (group < 0 || group >= shards) return false;
        }
        groups[i] = (uint16_t)group;
        counts[group]++;
    }
    return true;
}

template <int64_t FIXED_BYTES>
void group_rows(
    const uint64_t* keys, int64_t n, const uint16_t* groups, int64_t* next, uint64_t* grouped,
    const char* rows, char* grouped_rows, int64_t row_bytes) {
    const int64_t bytes = FIXED_BYTES ? FIXED_BYTES : row_bytes;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = next[groups[i]]++;
        if (i + MOVED_AHEAD < n) {
            __builtin_prefetch(rows + (i + MOVED_AHEAD) * bytes, 0, 3);
            __builtin_prefetch(grouped_rows + smaller(at + WRITTEN_AHEAD, n - 1) * bytes, 1, 3);
        }
        grouped[at] = keys[i];
        copy_bytes(grouped_rows + at * bytes, rows + i * bytes, bytes);
    }
}

void group(
    const uint64_t* keys, int64_t n, const uint16_t* groups, int64_t* next, uint64_t* grouped,
    uint32_t* order, uint32_t* places, const char* rows, char* grouped_rows, int64_t row_bytes) {
    if (rows != nullptr) {
        if (row_bytes == 64)
            group_rows<64>(keys, n, groups, next, grouped, rows, grouped_rows, row_bytes);
        else
            group_rows<0>(keys, n, groups, next, grouped, rows, grouped_rows, row_bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = next[groups[i]]++;
        grouped[at] = keys[i];
        if (order != nullptr) order[at] = (uint32_t)i;
        if (places != nullptr) places[i] = (uint32_t)at;
    }
}

template <int64_t FIXED_BYTES>
bool gather_rows(
    const char* source, int64_t rows, const uint32_t* order, int64_t n, char* out,
    int64_t row_bytes) {
    const int64_t bytes = FIXED_BYTES ? FIXED_BYTES : row_bytes;
    for (int64_t i = 0; i < n; i++) {
        if (i + MOVED_AHEAD < n) {
            const char* soon = source + order[i + MOVED_AHEAD] * bytes;
            __builtin_prefetch(soon, 0, 3);
            if (bytes > LINE_BYTES) __builtin_prefetch(soon + LINE_BYTES, 0, 3);
        }
        if (order[i] >= rows) return false;
        copy_bytes(out + i * bytes, source + order[i] * bytes, bytes);
    }
    return true;
}

bool gather(
    const char* source, int64_t rows, const uint32_t* order, int64_t n, char* out,
    int64_t row_bytes) {
    if (row_bytes == 64) return gather_rows<64>(source, rows, order, n, out, row_bytes);
    return gather_rows<0>(source, rows, order, n, out, row_bytes);
}

template <int64_t FIXED_BYTES>
bool scatter_rows(
    const char* grouped, const uint32_t* order, int64_t n, char* out, int64_t rows,
    int64_t row_bytes) {
    const int64_t bytes = FIXED_BYTES ? FIXED_BYTES : row_bytes;
    for (int64_t i = 0; i < n; i++) {
        if (i + MOVED_AHEAD < n)
            __builtin_prefetch(out + order[i + MOVED_AHEAD] * bytes, 1, 3);
        if (order[i] >= rows) return false;
        copy_bytes(out + order[i] * bytes, grouped + i * bytes, bytes);
    }
    return true;
}

bool scatter(
    const char* grouped, const uint32_t* order, int64_t n, char* out, int64_t rows,
    int64_t row_bytes) {
    if (row_bytes == 64) return scatter_rows<64>(grouped, order, n, out, rows, row_bytes);
    return scatter_rows<0>(grouped, order, n, out, rows, row_bytes);
}

}  // namespace

extern const Kernels KERNELS_NAME = {
    locate,
    {push_rows<float>, push_rows<double>, push_rows<int64_t>},
    {apply_rows<float>, apply_rows<double>, apply_rows<int64_t>},
    load_rows,
    {pull_rows<float>, pull_rows<double>, pull_rows<int64_t>},
    {push_blocks<float>, push_blocks<double>, push_blocks<int64_t>},
    {fill_rows<float>, fill_rows<double>, fill_rows<int64_t>},
    rehash,
    forget_stamps,
    row_numbers,
    survey_rows,
    claim_rows,
    claim_located,
    find_groups,
    group,
    gather,
    scatter,
};

}  // namespace resilient_ps
