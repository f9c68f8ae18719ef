// The passes over tables, as the other files see them. What they do, and the layout of entries,
// rows, `meta`, `hyper` and `work`, is written in resilient_ps/tables/kernels.py: the same results,
// byte for byte, in whichever of the two a table is worked on (payloads of NaN apart).
//
// Kernels check nothing: the bindings in module.cpp and the Python classes do.

#ifndef RESILIENT_PS_KERNELS_H
#define RESILIENT_PS_KERNELS_H

#include <stdint.h>

namespace resilient_ps {

// Where numbers stand in `meta` and in `hyper`, and the formulas: as in kernels.py and steps.py.
enum MetaIndex { ROWS, CREATED, INDEXABLE, ROOM, BASE, LOCATED, DIM, STRIDE, LINE, FORMULA, INIT_KIND, SEED };
enum { META_NUMBERS = 12, HYPERPARAMETERS = 8 };
enum HyperIndex { INIT_A = HYPERPARAMETERS, INIT_B, INITIAL_STATE, HYPER_NUMBERS };
enum FormulaNumber { SUM, SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM, FTRL, FORMULAS };
enum Full { DONE, INDEX_FULL, ROOM_FULL, REPEATED };
enum Dtype { FLOAT32, FLOAT64, INT64, DTYPES };

struct Table {
    uint64_t* entries;
    int64_t entries_n;  // of 16 bytes; a power of two
    void* slab;
    uint64_t* row_keys;
    int64_t* meta;
    const double* hyper;
    void* work;
};

struct Dense {
    void* values;
    int64_t elements;
    void* state;
    int64_t block_elements;
    const int64_t* meta;
    const double* hyper;
    void* work;
};

// One implementation for each instruction set; module.cpp chooses when it is imported.
struct Kernels {
    // The numbers of the keys' rows (-1: a repeat); rows are created by `push_rows`, which goes on.
    int (*locate)(
        const Table&, const uint64_t* keys, int64_t n, int32_t* rows, int32_t* following);
    int (*push_rows[DTYPES])(
        const Table&, const uint64_t* keys, int64_t n, const void* grads, int32_t* rows,
        int32_t* following);
    // What `push_rows` does when they are located and have room, for keys `from` to `to` - 1. It
    // needs the table's `work` for itself.
    void (*apply_rows[DTYPES])(
        const Table&, const uint64_t* keys, int64_t from, int64_t to, const void* grads,
        const int32_t* rows, const int32_t* following);
    int (*load_rows)(
        const Table&, const uint64_t* keys, int64_t n, const char* source, int64_t row_bytes,
        int64_t stride_bytes, int32_t* rows, int32_t* following);
    void (*pull_rows[DTYPES])(const Table&, const uint64_t* keys, int64_t n, void* out);
    void (*push_blocks[DTYPES])(
        const Dense&, const void* grads, const int64_t* blocks, int64_t blocks_n);
    void (*fill_rows[DTYPES])(
        void* out, int64_t rows, int64_t first_row, const int64_t* meta, const double* hyper);
    void (*rehash)(
        const uint64_t* entries, int64_t entries_n, uint64_t* larger, int64_t larger_n,
        int64_t rows_kept);
    void (*forget_stamps)(uint64_t* entries, int64_t entries_n);
    void (*row_numbers)(
        const uint64_t* entries, int64_t entries_n, const uint64_t* keys, int64_t n, int32_t* rows);
    // `words`: from the first entry that is looked at.
    void (*survey_rows)(
        const uint64_t* words, int64_t n, uint64_t stamp, uint8_t* touched, int64_t rows);
    int64_t (*claim_rows)(
        const uint64_t* entries, int64_t entries_n, const uint64_t* keys, int64_t n,
        uint32_t* rows, uint8_t* states, int64_t first, int64_t last);
    int64_t (*claim_located)(  // the same, of keys that were located
        const int32_t* numbers, int64_t n, uint32_t* rows, uint8_t* states, int64_t first,
        int64_t last);
    // False: a rank is not in 0 .. shards - 1.
    bool (*find_groups)(
        const uint64_t* keys, int64_t n, int64_t shards, const int32_t* ranks, uint16_t* groups,
        int64_t* counts);
    // `next`: where each group begins; moved on. `rows` and `places` may be null.
    void (*group)(
        const uint64_t* keys, int64_t n, const uint16_t* groups, int64_t* next, uint64_t* grouped,
        uint32_t* order, uint32_t* places, const char* rows, char* grouped_rows,
        int64_t row_bytes);
    // False: `order` names a row beyond `rows`.
    bool (*gather)(
        const char* source, int64_t rows, const uint32_t* order, int64_t n, char* out,
        int64_t row_bytes);
    bool (*scatter)(
        const char* grouped, const uint32_t* order, int64_t n, char* out, int64_t rows,
        int64_t row_bytes);
};

extern const Kernels baseline_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
#endif

}  // namespace resilient_ps

#endif
