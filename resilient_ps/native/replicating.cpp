// Plain pushes through the logs of a primary and its backups, all shards of a message in one call.
// What this does is what `Leading`, `Replica`, `Log`, `ShardState` and `JobLedger` do, to the same
// objects: see resilient_ps/quick_replication.py, which says where it is asked.
//
// All or nothing: everything is looked at before anything changes. What is not plain is left to
// the Python code.

#include "replicating.h"

#include "frames.h"
#include "parts.h"

#include <memory>
#include <new>

namespace resilient_ps {
namespace {

// Objects of Python, set once by `set_up_replicating`.
struct {
    bool complete;
    PyObject *append_part, *appended_part, *entry, *command, *reply;  // types
    PyObject *push, *held, *ok, *all_guards, *digest;
    int64_t command_bytes;
} known;

#define LOG_NAMES(X) \
    X(_attempt) X(_early) X(_entries) X(_epochs) X(_held) X(_members) X(_members_of) X(_origins) \
    X(_quota_at) X(_target) X(_verified) X(append) X(applied) X(attempt) X(barrier) X(buffers) \
    X(by_path) X(bytes_max) X(claim) X(clock) X(commit) X(copy) X(counted) X(cut) X(cuts) \
    X(digest) X(epoch) X(followers) X(go_on) X(guards) X(heir) X(held_bytes) X(holds_back) \
    X(home) X(in_sync) X(incarnation) X(is_pushable) X(jobs) X(joining) X(keys) X(kind) X(known) \
    X(lack) X(last) X(leading) X(leases) X(ledger) X(live) X(log) X(lsn) X(match) X(members) \
    X(min_in_sync) X(n) X(nbytes) X(number) X(opened) X(overlay) X(parts) X(pieces) X(popleft) \
    X(position) X(prev) X(push_arrays) X(quotas) X(ranks) X(rate) X(record) X(replay_digest) \
    X(replayed) X(request) X(resend) X(run_to_push) X(sent) X(server) X(settled) X(shard) \
    X(since_ns) X(table) X(tables) X(taken) X(text) X(ticked) X(told) X(values) X(width) \
    X(worker) X(writer)
#define DECLARE(name) PyObject* name;
struct {
    LOG_NAMES(DECLARE)
} names;

// An attribute, for the length of a scope.
struct Got : Owned {
    Got(PyObject* of, PyObject* name) : Owned(of ? PyObject_GetAttr(of, name) : nullptr) {}
    bool is(PyObject* what) const { return get() == what; }
};

bool equal(PyObject* a, PyObject* b) {
    return a != nullptr && b != nullptr && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

bool is(PyObject* of, PyObject* name, PyObject* what) { return Got(of, name).is(what); }

bool number_of(PyObject* of, PyObject* name, uint64_t* out) {
    return as_number(Got(of, name).get(), U64, out);
}

bool place_of(PyObject* of, PyObject* name, int64_t* out) {  // -1: none
    Got value(of, name);
    if (!value || !PyLong_Check(value.get())) return false;
    *out = PyLong_AsLongLong(value.get());
    return *out >= -1 && !PyErr_Occurred();
}

bool set(PyObject* of, PyObject* name, PyObject* value) {  // takes the reference over
    Owned given(value);
    return given && PyObject_SetAttr(of, name, given.get()) == 0;
}

bool set(PyObject* of, PyObject* name, int64_t value) {
    return set(of, name, PyLong_FromLongLong(value));
}

bool set_digest(PyObject* of, PyObject* name, uint64_t value) {
    return set(of, name, number(value));
}

PyObject* item_of(PyObject* dict, PyObject* key) {  // borrowed
    return dict && key && PyDict_Check(dict) ? PyDict_GetItemWithError(dict, key) : nullptr;
}

// ------------------------------------------------------------------------------------- pushes

// What a push says of itself.
struct Meant {
    PyObject *worker, *table, *clock_of;
    uint64_t clock, n, prev;

    bool read(PyObject* worker_of, PyObject* table_of, PyObject* clock_at, PyObject* n_of) {
        worker = worker_of, table = table_of, clock_of = clock_at;
        return worker != nullptr && is_tuple_of(worker, words.worker, 3) &&
               as_number(table, U32, &n) && as_number(clock_of, U64, &clock) &&
               as_number(n_of, U32, &n);
    }
    PyObject* job() const { return PyTuple_GET_ITEM(worker, 0); }
    PyObject* rank() const { return PyTuple_GET_ITEM(worker, 1); }
    PyObject* incarnation() const { return PyTuple_GET_ITEM(worker, 2); }
};

// `JobLedger.accepts`
bool accepts(PyObject* record, const Meant& meant) {
    uint64_t ticked, last, replayed;
    return is(record, names.live, Py_True) &&
           equal(Got(record, names.incarnation).get(), meant.incarnation()) &&
           number_of(record, names.ticked, &ticked) && meant.clock == ticked + 1 &&
           number_of(record, names.last, &last) && meant.prev == last &&
           number_of(record, names.replayed, &replayed) && replayed == last && meant.n > meant.prev;
}

// `Cuts.holds_back`, `Barrier.has_room_for`
bool may_come_now(PyObject* shard, PyObject* job, const Meant& meant, int64_t nbytes) {
    Got cuts(shard, names.cuts), cut(cuts.get(), names.cut), barrier(job, names.barrier);
    if (!cut) return false;
    if (!cut.is(Py_None)) {
        PyObject* args[] = {cuts.get(), meant.job(), meant.clock_of};
        Owned held(PyObject_VectorcallMethod(names.holds_back, args, 3, nullptr));
        if (held.get() != Py_False) return false;
    }
    int64_t held_bytes, bytes_max;
    return place_of(barrier.get(), names.held_bytes, &held_bytes) &&
           place_of(barrier.get(), names.bytes_max, &bytes_max) &&
           held_bytes + nbytes <= bytes_max / 2;
}

// `ShardState.plain_push`; and then what makes it and notes it.
struct Push {
    Owned shard, record, table, rows, keys_of, values_of, position;
    PushPart part;  // of a sparse table
    DenseRun run;   // of a dense one
    Meant meant;
    bool is_dense;

    // `n` keys and `elements` gradients, which are at `part.keys` and `part.grads`.
    bool open(PyObject* of, int64_t n, int64_t elements, int dtype, int64_t nbytes, int64_t lsn) {
        shard.reset(Py_XNewRef(of));
        int64_t at, width;
        Got tables(of, names.tables), jobs(of, names.jobs);
        table.reset(Py_XNewRef(item_of(tables.get(), meant.table)));
        PyObject* job = item_of(jobs.get(), meant.job());
        if (!table || job == nullptr || !is(of, names.guards, known.all_guards) ||
            !place_of(of, names.lsn, &at) || at + 1 != lsn ||
            !equal(Got(table.get(), names.writer).get(), meant.job()) ||
            !is(table.get(), names.overlay, Py_None) ||
            !place_of(table.get(), names.width, &width) || width < 0)
            return false;
        is_dense = width == 0;
        if (!is_dense && n * width != elements) return false;
        Got ledger(job, names.ledger), ranks(ledger.get(), names.ranks);
        record.reset(Py_XNewRef(item_of(ranks.get(), meant.rank())));
        if (!record || !is(ledger.get(), names.buffers, Py_False) || !accepts(record.get(), meant) ||
            !may_come_now(of, job, meant, nbytes))
            return false;
        return is_dense || open_rows(n, width, dtype);
    }

    bool open_rows(int64_t n, int64_t width, int dtype) {
        rows.reset(PyObject_GetAttr(table.get(), names._held));
        Got arrays(rows.get(), names.push_arrays);
        return arrays && part.open(arrays.get(), n, dtype) && width == part.arrays.table.meta[DIM];
    }

    // Of a dense table: blocks that stand one behind the other, and exactly their gradients.
    bool open_run(const Buffer& values, int dtype) {
        Owned given(PyObject_CallMethodOneArg(table.get(), names.run_to_push, keys_of.get()));
        return given && PyTuple_Check(given.get()) && PyTuple_GET_SIZE(given.get()) == 7 &&
               run.open(&PyTuple_GET_ITEM(given.get(), 0), values.as<char>(), values.size(), dtype);
    }

    // `TablePart.is_pushable`, of a dense table
    bool is_pushable(int64_t elements) {
        Owned size(PyLong_FromLongLong(elements));
        PyObject* args[] = {table.get(), keys_of.get(), values_of.get(), size.get()};
        if (!size) return false;
        return Owned(PyObject_VectorcallMethod(names.is_pushable, args, 4, nullptr)).get() == Py_True;
    }

    // `PlainPush.note`, in `ShardState.commit`
    bool note(int64_t lsn) {
        PyObject* args[] = {keys_of.get(), meant.table};
        Owned content(PyObject_Vectorcall(known.digest, args, 2, nullptr));
        uint64_t mixed, digest;
        if (!as_number(content.get(), U64, &digest) ||
            !number_of(record.get(), names.digest, &mixed))
            return false;
        mixed = (mixed ^ meant.n) * 0x9E3779B97F4A7C15ull + digest;
        mixed ^= mixed >> 29;
        Got epoch(shard.get(), names.epoch);
        position.reset(epoch ? new_tuple(words.position, Py_NewRef(epoch.get()), number(lsn)) : 0);
        return set_digest(record.get(), names.digest, mixed) &&
               set_digest(record.get(), names.replay_digest, mixed) &&
               set(record.get(), names.last, (int64_t)meant.n) &&
               set(record.get(), names.replayed, (int64_t)meant.n) && position &&
               set(shard.get(), names.lsn, lsn) &&
               set(shard.get(), names.position, Py_NewRef(position.get()));
    }

    bool go_on() {
        if (is_dense) return true;
        Owned full(PyLong_FromLong(part.full));
        PyObject* args[] = {rows.get(), full.get(), keys_of.get(), values_of.get()};
        return part.full == 0 ||
               Owned(PyObject_VectorcallMethod(names.go_on, args, 4, nullptr)).get() != nullptr;
    }

    PyObject* answer(PyObject* shard_number) const {
        return new_tuple(
            words.part_answer, Py_NewRef(shard_number), Py_NewRef(known.ok),
            Py_NewRef(position.get()), number(meant.n), PyLong_FromLong(0), PyLong_FromLong(0),
            Py_NewRef(words.empty_bytes));
    }
};

// A push that stands in a log.
struct Logged : Push {
    Owned entry, command;
    Buffer keys, values;
    int64_t lsn, nbytes;

    // `of`: an Entry
    bool read(PyObject* of) {
        if (of == nullptr || !is_tuple_of(of, known.entry, 2)) return false;
        entry.reset(Py_NewRef(of));
        command.reset(Py_NewRef(PyTuple_GET_ITEM(of, 1)));
        PyObject* at = PyTuple_GET_ITEM(of, 0);
        Got text(command.get(), names.text);
        keys_of.reset(PyObject_GetAttr(command.get(), names.keys));
        values_of.reset(keys_of ? PyObject_GetAttr(command.get(), names.values) : nullptr);
        if (!is_tuple_of(at, words.position, 2) || !text || !PyBytes_Check(text.get()) ||
            !values_of || !keys.open(keys_of.get(), "keys", UINT64_LETTERS) ||
            !values.open(values_of.get(), "values", ""))
            return false;
        lsn = PyLong_AsLongLong(PyTuple_GET_ITEM(at, 1));
        nbytes = known.command_bytes + PyBytes_GET_SIZE(text.get()) + keys.bytes() + values.bytes();
        return lsn > 0;
    }
    PyObject* epoch() const { return PyTuple_GET_ITEM(PyTuple_GET_ITEM(entry.get(), 0), 0); }

    // Is it plain, and next?
    bool is_due(PyObject* of_shard) {
        PyObject* of = command.get();
        worker_.reset(PyObject_GetAttr(of, names.worker));
        table_.reset(PyObject_GetAttr(of, names.table));
        clock_.reset(PyObject_GetAttr(of, names.clock));
        const int dtype = dtype_of(values);
        if (dtype < 0 || !is(of, names.kind, known.push) ||
            !number_of(of, names.prev, &meant.prev) ||
            !meant.read(worker_.get(), table_.get(), clock_.get(), Got(of, names.n).get()) ||
            !open(of_shard, keys.size(), values.size(), dtype, keys.bytes() + values.bytes(), lsn))
            return false;
        if (is_dense) return open_run(values, dtype);
        part.keys = keys.as<uint64_t>(), part.grads = values.as<char>();
        return true;
    }

   private:
    Owned worker_, table_, clock_;
};

// Makes pushes of different shards, and notes them. False: an error of Python's is set.
template <class Pushes>
bool make_all(const Pushes& pushes) {
    PushPart* parts[PARTS_MAX];
    DenseRun* runs[PARTS_MAX];
    int64_t parts_n = 0, runs_n = 0, parts_bytes = 0, runs_bytes = 0;
    for (Logged* push : pushes) {
        const int64_t bytes = push->values.bytes();
        if (push->is_dense)
            runs[runs_n++] = &push->run, runs_bytes += bytes;
        else
            parts[parts_n++] = &push->part, parts_bytes += bytes;
    }
    if (parts_n > 0) make_pushes(parts, parts_n, parts_bytes);
    if (runs_n > 0) push_dense(runs, runs_n, runs_bytes);
    for (Logged* push : pushes)
        if (!push->go_on() || !push->note(push->lsn)) return false;
    return true;
}

// Pointers to those pushes of a message that are to be made.
struct Dues {
    Logged* all[PARTS_MAX];
    int n = 0;

    void add(Logged* push) { all[n++] = push; }
    Logged* const* begin() const { return all; }
    Logged* const* end() const { return all + n; }
};

// ---------------------------------------------------------------------------------------- logs

// A `Log`.
struct LogOf {
    Owned log, entries, epochs;
    int64_t applied, last, nbytes, keys;

    bool open(PyObject* holder) {
        log.reset(PyObject_GetAttr(holder, names.log));
        PyObject* of = log.get();
        if (!log || !place_of(of, names.applied, &applied) || !place_of(of, names.last, &last) ||
            !place_of(of, names.nbytes, &nbytes) || !place_of(of, names.keys, &keys))
            return false;
        entries.reset(PyObject_GetAttr(of, names._entries));
        epochs.reset(PyObject_GetAttr(of, names._epochs));
        return entries && epochs && PyList_Check(epochs.get()) && PyList_GET_SIZE(epochs.get()) > 0;
    }
    PyObject* last_epoch() const {
        return PyList_GET_ITEM(epochs.get(), PyList_GET_SIZE(epochs.get()) - 1);
    }
    PyObject* end() const {
        return new_tuple(words.position, Py_NewRef(last_epoch()), PyLong_FromLongLong(last));
    }
    PyObject* first_entry() const { return PySequence_GetItem(entries.get(), 0); }

    bool append(PyObject* entry, int64_t command_nbytes, int64_t keys_n) {
        Owned none(PyObject_CallMethodOneArg(entries.get(), names.append, entry));
        last += 1, nbytes += command_nbytes, keys += keys_n;
        return (bool)none;
    }
    bool take_first(const Logged& push) {
        Owned entry(PyObject_CallMethodNoArgs(entries.get(), names.popleft));
        applied += 1, nbytes -= push.nbytes, keys -= push.keys.size();
        return entry.get() == push.entry.get();
    }
    bool save() const {
        PyObject* of = log.get();
        return set(of, names.applied, applied) && set(of, names.last, last) &&
               set(of, names.nbytes, nbytes) && set(of, names.keys, keys);
    }
};

// ------------------------------------------------------------------------------------- backups

// What a backup is sent of one shard: the next entry, and perhaps that the one before is committed.
struct Taken {
    Owned replica, shard;
    LogOf log;
    Logged next, due;
    Logged* made;  // null: nothing is to be applied
    int64_t verified;
    PyObject* part;

    bool open(PyObject* of, PyObject* by_number) {
        part = of, made = nullptr;
        if (!is_tuple_of(part, known.append_part, 6)) return false;
        PyObject* entries = PyTuple_GET_ITEM(part, 5);
        replica.reset(Py_XNewRef(item_of(by_number, PyTuple_GET_ITEM(part, 0))));
        PyObject* held_by = replica.get();
        if (!replica || !is(held_by, names.leading, Py_None) ||
            !is(held_by, names._target, Py_None) || !PyTuple_Check(entries) ||
            PyTuple_GET_SIZE(entries) != 1 || !next.read(PyTuple_GET_ITEM(entries, 0)))
            return false;
        shard.reset(PyObject_GetAttr(held_by, names.shard));
        return shard && shard.get() != Py_None && log.open(held_by) && follows() && find_due();
    }

    bool follows() const {
        PyObject *epoch = PyTuple_GET_ITEM(part, 1), *prev = PyTuple_GET_ITEM(part, 3);
        return equal(epoch, Got(replica.get(), names.epoch).get()) &&
               equal(epoch, next.epoch()) && equal(epoch, log.last_epoch()) &&
               equal(PyTuple_GET_ITEM(part, 2), Got(replica.get(), names._attempt).get()) &&
               equal(prev, Owned(log.end()).get()) && next.lsn == log.last + 1;
    }

    bool find_due() {
        uint64_t commit;
        if (!as_number(PyTuple_GET_ITEM(part, 4), INT64_MAX, &commit) ||
            !place_of(replica.get(), names._verified, &verified))
            return false;
        if (verified < next.lsn) verified = next.lsn;
        int64_t upto = (int64_t)commit < verified ? (int64_t)commit : verified;
        if (upto <= log.applied) return true;
        if (upto != log.applied + 1 || upto > log.last) return false;
        Owned first(log.first_entry());
        made = &due;
        return due.read(first.get()) && due.lsn == upto && due.is_due(shard.get());
    }

    bool hold() {
        return log.append(next.entry.get(), next.nbytes, next.keys.size()) &&
               (made == nullptr || log.take_first(due)) && log.save() &&
               set(replica.get(), names._verified, verified);
    }

    PyObject* says() const {
        const auto own = [this](Py_ssize_t i) { return Py_NewRef(PyTuple_GET_ITEM(part, i)); };
        return new_tuple(
            known.appended_part, own(0), own(1), own(2), Py_NewRef(known.held), number(verified));
    }
};

// All parts of a message, each opened by `open(part, ...)`, of different shards. Null: not plain.
template <class Part, class... More>
std::unique_ptr<Part[]> opened(PyObject* parts, More... more) {
    std::unique_ptr<Part[]> none;
    if (!known.complete || !PyTuple_Check(parts)) return none;
    const Py_ssize_t n = PyTuple_GET_SIZE(parts);
    if (n < 1 || n > PARTS_MAX) return none;
    std::unique_ptr<Part[]> all(new (std::nothrow) Part[n]);
    for (Py_ssize_t i = 0; all && i < n; i++) {
        if (!all[i].open(PyTuple_GET_ITEM(parts, i), more...)) return none;
        for (Py_ssize_t j = 0; j < i; j++)
            if (all[j].shard.get() == all[i].shard.get()) return none;
    }
    return all;
}

// take_entries(parts, by_number) -> a tuple of what is answered, or None
PyObject* take_entries(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 2, "take_entries")) return nullptr;
    std::unique_ptr<Taken[]> all = opened<Taken>(args[0], args[1]);
    if (!all) return leave_it();
    const Py_ssize_t n = PyTuple_GET_SIZE(args[0]);
    Owned said(PyTuple_New(n));
    Dues dues;
    for (Py_ssize_t i = 0; said && i < n; i++) {
        PyObject* part = all[i].says();
        if (part == nullptr || !all[i].hold()) return nullptr;
        PyTuple_SET_ITEM(said.get(), i, part);
        if (all[i].made != nullptr) dues.add(all[i].made);
    }
    return said && make_all(dues) ? said.release() : nullptr;
}

// ------------------------------------------------------------------------------------ primaries

// A `Leading` that may be asked to write a push, or hears of one.
struct Led {
    Owned leading, shard, followers;
    LogOf log;

    bool find(PyObject* number_of_shard, PyObject* by_number) {
        PyObject* replica = item_of(by_number, number_of_shard);
        if (replica == nullptr) return false;
        leading.reset(PyObject_GetAttr(replica, names.leading));
        PyObject* of = leading.get();
        if (!leading || of == Py_None || !is(of, names.heir, Py_None)) return false;
        shard.reset(PyObject_GetAttr(of, names.shard));
        followers.reset(PyObject_GetAttr(of, names.followers));
        return shard && followers && PyDict_Check(followers.get()) && log.open(of);
    }
};

// What a follower says of one shard: it holds an entry, which perhaps all do then.
struct Heard : Led {
    Owned follower;
    Logged due;
    Logged* made;
    PyObject* part;
    int64_t match, since_ns, commit;

    bool open(PyObject* of, PyObject* by_number, PyObject* member, int64_t now_ns) {
        part = of, made = nullptr;
        uint64_t lsn;
        if (!is_tuple_of(part, known.appended_part, 5) ||
            PyTuple_GET_ITEM(part, 3) != known.held ||
            !as_number(PyTuple_GET_ITEM(part, 4), INT64_MAX, &lsn) ||
            !find(PyTuple_GET_ITEM(part, 0), by_number) ||
            !equal(PyTuple_GET_ITEM(part, 1), Got(leading.get(), names.epoch).get()))
            return false;
        follower.reset(Py_XNewRef(item_of(followers.get(), member)));
        PyObject* by = follower.get();
        Got early(leading.get(), names._early);
        if (!follower || !is(by, names.counted, Py_True) || !early || !PyDict_Check(early.get()) ||
            PyDict_GET_SIZE(early.get()) != 0 ||
            !equal(PyTuple_GET_ITEM(part, 2), Got(by, names.attempt).get()) ||
            !place_of(by, names.match, &match))
            return false;
        if ((int64_t)lsn > match) match = (int64_t)lsn;
        return owes(now_ns) && find_due();
    }

    // `Follower.heard`
    bool owes(int64_t now_ns) {
        PyObject* by = follower.get();
        int64_t sent, taken, pieces;
        Got copy(by, names.copy);
        if (!copy || !place_of(by, names.sent, &sent) || !place_of(by, names.taken, &taken) ||
            !place_of(by, names.pieces, &pieces))
            return false;
        const bool all_taken = copy.is(Py_None) || taken + 1 >= pieces;
        since_ns = match >= sent && all_taken ? 0 : now_ns;
        return true;
    }

    // `Commitment.commit_held`, up to one entry
    bool find_due() {
        int64_t opened_at;
        if (!place_of(leading.get(), names.commit, &commit) ||
            !place_of(leading.get(), names.opened, &opened_at))
            return false;
        int64_t held = log.last;
        if (held > commit && !held_by_all(&held)) return false;
        if (held < opened_at || held <= commit) return true;
        if (held != log.applied + 1 ||
            !equal(Got(leading.get(), names.epoch).get(), Got(shard.get(), names.epoch).get()))
            return false;
        commit = held;
        Owned first(log.first_entry());
        made = &due;
        return due.read(first.get()) && due.lsn == held && due.is_due(shard.get());
    }

    bool held_by_all(int64_t* held) {
        Owned members(members_of());
        if (!members || !PyFrozenSet_Check(members.get())) return false;
        Owned each(PyObject_GetIter(members.get()));
        for (;;) {
            Owned member(each ? PyIter_Next(each.get()) : nullptr);
            if (!member) break;
            PyObject* by = item_of(followers.get(), member.get());
            int64_t theirs = -1;
            if (PyErr_Occurred() || (by != nullptr && !match_of(by, &theirs))) return false;
            if (theirs < *held) *held = theirs;
        }
        Py_ssize_t at = 0;
        PyObject *key, *by;
        while (PyDict_Next(followers.get(), &at, &key, &by)) {
            int64_t theirs;
            if (is(by, names.joining, Py_False)) continue;
            if (!match_of(by, &theirs)) return false;
            if (theirs < *held) *held = theirs;
        }
        return !PyErr_Occurred();
    }
    bool match_of(PyObject* by, int64_t* out) const {
        if (by != follower.get()) return place_of(by, names.match, out);
        *out = match;
        return true;
    }

    // `Commitment.members`
    PyObject* members_of() const {
        Got known_of(leading.get(), names.known), record(known_of.get(), names.record);
        Got in_sync(record.get(), names.in_sync), claim(leading.get(), names.claim);
        Got made_of(leading.get(), names._members_of);
        if (made_of && PyTuple_Check(made_of.get()) && PyTuple_GET_SIZE(made_of.get()) == 2 &&
            in_sync.is(PyTuple_GET_ITEM(made_of.get(), 0)) &&
            claim.is(PyTuple_GET_ITEM(made_of.get(), 1)))
            return PyObject_GetAttr(leading.get(), names._members);
        return PyObject_CallMethodNoArgs(leading.get(), names.members);
    }

    bool hear() {
        PyObject* by = follower.get();
        return set(by, names.match, match) && set(by, names.since_ns, since_ns) &&
               (made == nullptr || (set(leading.get(), names.commit, commit) &&
                                    log.take_first(due) && log.save()));
    }

    // Adds who waits for the entry that was made, and what it is told. False: an error.
    bool tell(PyObject* replies) const {
        if (made == nullptr) return true;
        Got origins(leading.get(), names._origins);
        Owned lsn(PyLong_FromLongLong(due.lsn));
        PyObject* found = lsn ? item_of(origins.get(), lsn.get()) : nullptr;
        if (found == nullptr) return !PyErr_Occurred();
        Owned origin(Py_NewRef(found)), number_of_shard(PyObject_GetAttr(shard.get(), names.number));
        if (!number_of_shard || PyDict_DelItem(origins.get(), lsn.get()) != 0) return false;
        Owned reply(new_tuple(
            known.reply, origin.release(), due.answer(number_of_shard.get()), Py_NewRef(Py_None)));
        return reply && PyList_Append(replies, reply.get()) == 0;
    }
};

// commit_entries(parts, by_number, member, now_ns) -> a list of replies, or None
PyObject* commit_entries(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 4, "commit_entries")) return nullptr;
    const int64_t now_ns = PyLong_AsLongLong(args[3]);
    std::unique_ptr<Heard[]> all = opened<Heard>(args[0], args[1], args[2], now_ns);
    if (!all) return leave_it();
    const Py_ssize_t n = PyTuple_GET_SIZE(args[0]);
    Dues dues;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!all[i].hear()) return nullptr;
        if (all[i].made != nullptr) dues.add(all[i].made);
    }
    Owned replies(PyList_New(0));
    if (!replies || !make_all(dues)) return nullptr;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!all[i].tell(replies.get())) return nullptr;
    return replies.release();
}

// -------------------------------------------------------------------------------------- writes

// A request's push, as its parts share it.
struct Asked {
    Owned worker, table, clock, n, rate, settled, text, keys_of, values_of;
    Buffer keys, values;
    Meant meant;
    int dtype;
    int64_t first = 0, start = 0;  // of the next part

    bool open(PyObject* request) {
        const auto own = [request](Owned* out, PyObject* name) {
            out->reset(PyObject_GetAttr(request, name));
            return (bool)*out;
        };
        Owned pieces;
        if (!own(&worker, names.worker) || !own(&table, names.table) ||
            !own(&clock, names.clock) || !own(&n, names.n) || !own(&rate, names.rate) ||
            !own(&settled, names.settled) || !own(&text, names.text) ||
            !own(&keys_of, names.keys) || !own(&pieces, names.values) ||
            !is(request, names.kind, known.push) || !PyTuple_Check(pieces.get()) ||
            PyTuple_GET_SIZE(pieces.get()) != 1 || !PyBytes_Check(text.get()) ||
            PyBytes_GET_SIZE(text.get()) != 0)
            return false;
        values_of.reset(Py_NewRef(PyTuple_GET_ITEM(pieces.get(), 0)));
        if (!keys.open(keys_of.get(), "keys", UINT64_LETTERS) ||
            !values.open(values_of.get(), "values", ""))
            return false;
        dtype = dtype_of(values);
        return dtype >= 0 && meant.read(worker.get(), table.get(), clock.get(), n.get());
    }
};

// One shard's part of a push, to become an entry.
struct Written : Led, Push {
    using Led::shard;
    PyObject* part;
    int64_t count, elements, nbytes, commit, lsn;
    Owned entry, prev_of;

    bool open(PyObject* of, PyObject* by_number, Asked* asked) {
        part = of;
        uint64_t keys_n, values_n;
        if (!is_tuple_of(part, words.part, 5) ||
            !as_number(PyTuple_GET_ITEM(part, 2), U32, &meant.prev) ||
            !as_number(PyTuple_GET_ITEM(part, 3), U32, &keys_n) ||
            !as_number(PyTuple_GET_ITEM(part, 4), INT64_MAX, &values_n) ||
            !find(PyTuple_GET_ITEM(part, 0), by_number) || !may_append() || log.applied != log.last)
            return false;
        const uint64_t prev = meant.prev;
        meant = asked->meant, meant.prev = prev;
        count = (int64_t)keys_n, elements = (int64_t)values_n;
        if (count > asked->keys.size() - asked->first ||
            elements > asked->values.size() - asked->start)
            return false;
        const int64_t bytes = 8 * count + elements * asked->values.itemsize();
        nbytes = known.command_bytes + bytes, lsn = log.last + 1;
        if (!Push::open(Led::shard.get(), count, elements, asked->dtype, bytes, lsn)) return false;
        keys_of.reset(PySequence_GetSlice(asked->keys_of.get(), asked->first, asked->first + count));
        values_of.reset(
            PySequence_GetSlice(asked->values_of.get(), asked->start, asked->start + elements));
        asked->first += count, asked->start += elements;
        return keys_of && values_of && (!is_dense || is_pushable(elements)) && is_not_behind() &&
               reaches_followers();
    }

    bool is_not_behind() const {
        Got at(Led::shard.get(), names.position);
        return at && PyObject_RichCompareBool(at.get(), PyTuple_GET_ITEM(part, 1), Py_GE) == 1;
    }

    // Does it serve, and `Commitment.appends_plainly`, with nothing pending?
    bool may_append() {
        PyObject* of = leading.get();
        Got known_of(of, names.known), record(known_of.get(), names.record);
        Got in_sync(record.get(), names.in_sync), home(of, names.home), lack(of, names.lack);
        Got quotas(Led::shard.get(), names.quotas), paths(quotas.get(), names.by_path);
        int64_t opened_at, least, quota_at;
        if (!in_sync || !PyTuple_Check(in_sync.get()) || !lack || !PyUnicode_Check(lack.get()) ||
            !paths || !PyDict_Check(paths.get()) || !place_of(of, names.commit, &commit) ||
            !place_of(of, names.opened, &opened_at) || !place_of(of, names._quota_at, &quota_at) ||
            !place_of(home.get(), names.min_in_sync, &least))
            return false;
        const Py_ssize_t held_by = PyTuple_GET_SIZE(in_sync.get());
        return commit >= opened_at && held_by >= 2 && held_by >= least &&
               PyUnicode_GET_LENGTH(lack.get()) == 0 && PyDict_GET_SIZE(paths.get()) == 0 &&
               log.applied >= quota_at &&
               equal(Got(of, names.epoch).get(), log.last_epoch());
    }

    // Do all followers lack this entry only?
    bool reaches_followers() const {
        Got home(leading.get(), names.home), leases(home.get(), names.leases);
        if (!leases || !PyDict_Check(leases.get())) return false;
        Py_ssize_t at = 0;
        PyObject *member, *by;
        while (PyDict_Next(followers.get(), &at, &member, &by)) {
            int64_t sent;
            if (!place_of(by, names.sent, &sent) || sent != log.last ||
                !is(by, names.resend, Py_False) || PyDict_Contains(leases.get(), member) != 1)
                return false;
        }
        return PyDict_GET_SIZE(followers.get()) > 0;
    }

    // `Commitment.append_plainly`
    bool enter(const Asked& asked, PyObject* origin) {
        prev_of.reset(log.end());
        Owned prev(number(meant.prev)), at(PyLong_FromLongLong(lsn));
        PyObject* args[] = {
            known.push, asked.worker.get(), asked.clock.get(), asked.n.get(), prev.get(),
            asked.table.get(), asked.rate.get(), asked.settled.get(), asked.text.get(),
            keys_of.get(), values_of.get(),
        };
        if (!prev || !at || !prev_of) return false;
        Owned command(PyObject_Vectorcall(known.command, args, 11, nullptr));
        if (!command) return false;
        PyObject* place =
            new_tuple(words.position, Py_NewRef(log.last_epoch()), Py_NewRef(at.get()));
        entry.reset(new_tuple(known.entry, place, command.release()));
        Got origins(leading.get(), names._origins);
        return entry && log.append(entry.get(), nbytes, count) && log.save() && origins &&
               PyDict_SetItem(origins.get(), at.get(), origin) == 0;
    }

    // Adds this part to what each follower's server is sent.
    bool send(PyObject* by_server, int64_t now_ns) {
        Py_ssize_t at = 0;
        PyObject *member, *by;
        while (PyDict_Next(followers.get(), &at, &member, &by)) {
            Got server(member, names.server), attempt(by, names.attempt);
            Got epoch(leading.get(), names.epoch);
            int64_t since_ns;
            if (!server || !attempt || !epoch || !place_of(by, names.since_ns, &since_ns) ||
                !set(by, names.told, commit) || !set(by, names.sent, lsn) ||
                (since_ns == 0 && !set(by, names.since_ns, now_ns)))
                return false;
            Owned own(new_tuple(
                known.append_part, Py_NewRef(PyTuple_GET_ITEM(part, 0)), epoch.release(),
                attempt.release(), Py_NewRef(prev_of.get()), PyLong_FromLongLong(commit),
                PyTuple_Pack(1, entry.get())));
            if (!own || !add_to(by_server, server.get(), own.get())) return false;
        }
        return true;
    }
    static bool add_to(PyObject* by_server, PyObject* server, PyObject* own) {
        PyObject* parts = item_of(by_server, server);
        if (parts != nullptr) return PyList_Append(parts, own) == 0;
        Owned first(PyErr_Occurred() ? nullptr : PyList_New(0));
        return first && PyList_Append(first.get(), own) == 0 &&
               PyDict_SetItem(by_server, server, first.get()) == 0;
    }
};

// enter_push(request, by_number, origin, now_ns) -> by server what it is sent, a list of parts; or
// None
PyObject* enter_push(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 4, "enter_push")) return nullptr;
    const int64_t now_ns = PyLong_AsLongLong(args[3]);
    Asked asked;
    Got parts(args[0], names.parts);
    if (!known.complete || !parts || !asked.open(args[0])) return leave_it();
    std::unique_ptr<Written[]> all = opened<Written>(parts.get(), args[1], &asked);
    if (!all || asked.first != asked.keys.size() || asked.start != asked.values.size())
        return leave_it();
    const Py_ssize_t n = PyTuple_GET_SIZE(parts.get());
    Owned by_server(PyDict_New());
    for (Py_ssize_t i = 0; by_server && i < n; i++)
        if (!all[i].enter(asked, args[2]) || !all[i].send(by_server.get(), now_ns)) return nullptr;
    return by_server.release();
}

// -------------------------------------------------------------------------------- without entries

// One shard's part of a push that has been made, of a primary that is alone: what `_record` of
// quick_requests.py does with it.
struct Passed : Push {
    Owned leading;
    LogOf log;

    // `of`: (leading, ...)
    bool open(PyObject* of, const Asked& asked, int64_t first, int64_t count) {
        if (!PyTuple_Check(of) || PyTuple_GET_SIZE(of) == 0) return false;
        leading.reset(Py_NewRef(PyTuple_GET_ITEM(of, 0)));
        shard.reset(PyObject_GetAttr(leading.get(), names.shard));
        meant = asked.meant;
        int64_t lsn;
        Got jobs(shard.get(), names.jobs), ledger(item_of(jobs.get(), meant.job()), names.ledger);
        Got ranks(ledger.get(), names.ranks);
        record.reset(Py_XNewRef(item_of(ranks.get(), meant.rank())));
        keys_of.reset(PySequence_GetSlice(asked.keys_of.get(), first, first + count));
        return record && keys_of && log.open(leading.get()) && log.applied == log.last &&
               place_of(shard.get(), names.lsn, &lsn) && lsn == log.last &&
               equal(Got(leading.get(), names.epoch).get(), log.last_epoch());
    }

    // `Commitment.pass_over`, and that it happened. False: an error of Python's is set.
    bool pass() {
        log.applied = log.last = log.last + 1;
        return log.save() && set(leading.get(), names.commit, log.last) && note(log.last);
    }

    char* pack(char* at, uint32_t number_of_shard) const {
        Place place = {};
        place.read(position.get());
        at = put<uint32_t>(at, number_of_shard);
        at = put<uint8_t>(at, 0);  // Status.OK
        at = put<uint64_t>(at, place.incarnation);
        at = put<uint64_t>(at, place.counter);
        at = put<uint64_t>(at, place.lsn);
        at = put<uint64_t>(at, meant.n);
        at = put<uint32_t>(at, 0);  // keys
        at = put<uint64_t>(at, 0);  // values
        return put<uint32_t>(at, 0);  // text
    }
};

// note_pushes(request, made) -> [the bytes of the answer], or None. `made`: for each part a tuple
// that begins with the `Leading` of its shard; no shard is there twice.
PyObject* note_pushes(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 2, "note_pushes")) return nullptr;
    Asked asked;
    Got parts(args[0], names.parts), number_of(args[0], names.request);
    uint64_t request, shards[PARTS_MAX];
    if (!known.complete || !parts || !PyTuple_Check(parts.get()) || !PyList_Check(args[1]) ||
        !as_number(number_of.get(), U64, &request) || !asked.open(args[0]))
        return leave_it();
    const Py_ssize_t n = PyTuple_GET_SIZE(parts.get());
    if (n < 1 || n > PARTS_MAX || PyList_GET_SIZE(args[1]) != n) return leave_it();
    std::unique_ptr<Passed[]> all(new (std::nothrow) Passed[(size_t)n]);
    if (!all) return PyErr_NoMemory();
    int64_t first = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject* part = PyTuple_GET_ITEM(parts.get(), i);
        uint64_t count;
        if (!is_tuple_of(part, words.part, 5) ||
            !as_number(PyTuple_GET_ITEM(part, 0), U32, &shards[i]) ||
            !as_number(PyTuple_GET_ITEM(part, 3), U32, &count) ||
            !all[i].open(PyList_GET_ITEM(args[1], i), asked, first, (int64_t)count))
            return leave_it();
        first += (int64_t)count;
    }
    const int64_t meta_bytes = ANSWER_BYTES + n * PART_ANSWER_BYTES;
    Owned bytes(PyBytes_FromStringAndSize(nullptr, HEAD_BYTES + meta_bytes));
    if (!bytes) return nullptr;
    char* at = PyBytes_AS_STRING(bytes.get());
    at = put_head(at, words.answer_kind, 0, meta_bytes, 0, 0, request);
    at = put<uint32_t>(at, (uint32_t)n);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!all[i].pass()) return nullptr;
        at = all[i].pack(at, (uint32_t)shards[i]);
    }
    return Py_BuildValue("[O]", bytes.get());
}

// --------------------------------------------------------------------------------------- set-up

// set_up_replicating(words: dict), after `set_up`
PyObject* set_up_replicating(PyObject*, PyObject* from) {
    if (!PyDict_Check(from)) {
        PyErr_SetString(PyExc_TypeError, "set_up_replicating takes a dict");
        return nullptr;
    }
    known.complete = false;
    const struct {
        const char* name;
        PyObject** to;
        bool is_tuple;
    } all[] = {
        {"AppendPart", &known.append_part, true}, {"AppendedPart", &known.appended_part, true},
        {"Entry", &known.entry, true},            {"Reply", &known.reply, true},
        {"Command", &known.command, false},       {"push", &known.push, false},
        {"held", &known.held, false},             {"ok", &known.ok, false},
        {"all_guards", &known.all_guards, false}, {"digest", &known.digest, false},
    };
    for (const auto& each : all) {
        PyObject* object = PyDict_GetItemString(from, each.name);
        if (object == nullptr || (each.is_tuple && (!PyType_Check(object) ||
                                  !PyType_IsSubtype((PyTypeObject*)object, &PyTuple_Type)))) {
            PyErr_Format(PyExc_KeyError, "set_up_replicating: %s is missing or wrong", each.name);
            return nullptr;
        }
        Py_XSETREF(*each.to, Py_NewRef(object));
    }
    uint64_t command_bytes;
    if (!as_number(PyDict_GetItemString(from, "command_bytes"), U32, &command_bytes)) {
        PyErr_SetString(PyExc_KeyError, "set_up_replicating: command_bytes is missing");
        return nullptr;
    }
    known.command_bytes = (int64_t)command_bytes;
    known.complete = words.complete;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"set_up_replicating", set_up_replicating, METH_O, nullptr},
    {"enter_push", (PyCFunction)(void (*)(void))enter_push, METH_FASTCALL, nullptr},
    {"take_entries", (PyCFunction)(void (*)(void))take_entries, METH_FASTCALL, nullptr},
    {"commit_entries", (PyCFunction)(void (*)(void))commit_entries, METH_FASTCALL, nullptr},
    {"note_pushes", (PyCFunction)(void (*)(void))note_pushes, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_replicating(PyObject* module) {
#define INTERN(name) \
    if ((names.name = PyUnicode_InternFromString(#name)) == nullptr) return false;
    LOG_NAMES(INTERN)
    return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace resilient_ps
