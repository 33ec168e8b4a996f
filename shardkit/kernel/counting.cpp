// Counts of numbers by value, or by the upper bits of their float64 patterns: see statistics/key_counts.py.

#include "python.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "wire.h"

namespace shardkit {
namespace {

constexpr int kExact = -1;  // No bits are dropped, and integers are not float64 yet.
constexpr int kMaxDropped = 63;
constexpr size_t kMaxAhead = 4096;
constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;  // 2**64 over the golden ratio: keys in a row get slots far apart.

// Empty where the count is 0; the key is 0 then.
struct Slot {
  uint64_t key;
  uint64_t count;
};

inline uint64_t pattern_of(double value) { return load<uint64_t>(&value); }

// A key of one level, of values of one kind, at a coarser level.
inline uint64_t raised(uint64_t key, char kind, int from, int to) {
  if (from == to) return key;
  if (from == kExact) {
    if (kind == 'q') key = pattern_of(static_cast<double>(static_cast<int64_t>(key)));
    if (kind == 'Q') key = pattern_of(static_cast<double>(key));
    from = 0;
  }
  return key >> (to - from);
}

// Open addressing, at most half full.
class Slots {
 public:
  Slots(Slot* slots, size_t num_slots)
      : slots_(slots), mask_(num_slots - 1), shift_(64 - __builtin_ctzll(static_cast<uint64_t>(num_slots))) {}

  // The slot of a key, or the empty one where it belongs.
  Slot& of(uint64_t key) const {
    size_t at = key * kSpread >> shift_;
    while (slots_[at].key != key && slots_[at].count != 0) at = (at + 1) & mask_;
    return slots_[at];
  }

  size_t size() const { return mask_ + 1; }
  const Slot* begin() const { return slots_; }
  const Slot* end() const { return slots_ + size(); }
  void clear() const { std::memset(static_cast<void*>(slots_), 0, size() * sizeof(Slot)); }

 private:
  Slot* slots_;
  size_t mask_;
  int shift_;
};

class Table {
 public:
  Table(Slots memory, char kind_of_values, int64_t most, int level, int64_t count)
      : slots(memory), kind(kind_of_values), max_keys(most), dropped(level), num_keys(count) {}

  const Slots slots;
  const char kind;
  const int64_t max_keys;
  int dropped;
  int64_t num_keys;

  // Adds values until one more key would be too many; returns where.
  template <typename KeyOf, typename CountOf>
  size_t add(size_t first, size_t stop, KeyOf key_of, CountOf count_of) {
    const Slots found = slots;
    for (size_t i = first; i < stop; ++i) {
      const uint64_t key = key_of(i);
      Slot& slot = found.of(key);
      if (slot.count == 0) {
        if (num_keys == max_keys) return i;
        ++num_keys;
        slot.key = key;
      }
      slot.count += static_cast<uint64_t>(count_of(i));
    }
    return stop;
  }

  // Drops as few bits as leave room for values that come next, the first of which has none.
  template <typename KeyOf>
  void make_room(size_t first, size_t stop, KeyOf key_of) {
    std::vector<Slot> entries(slots.size() + (stop - first));
    size_t num_entries = 0;
    for (const Slot& slot : slots) {
      // Without a branch: which slots are empty cannot be guessed.
      entries[num_entries] = slot;
      num_entries += slot.count != 0;
    }
    entries.resize(num_entries);
    for (size_t i = first; i < stop; ++i) entries.push_back({key_of(i), 1});
    const int level = enough_dropped(entries);
    entries.resize(num_entries);
    fill(slots, entries, level);
    dropped = level;
  }

 private:
  int enough_dropped(const std::vector<Slot>& entries) {
    scratch_.resize(slots.size());
    const Slots scratch(scratch_.data(), scratch_.size());
    const auto fits = [&](int level) { return fill(scratch, entries, level); };
    int low = dropped, high = kMaxDropped;  // Too many are left at `low`.
    // Mostly one bit more is enough, but from the values themselves it is far.
    for (int next = dropped + 1, step = 1; dropped != kExact && next < kMaxDropped; next += step, step *= 2) {
      if (fits(next)) {
        high = next;
        break;
      }
      low = next;
    }
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

  // Fills a table with entries at another level; false as soon as they are too many.
  bool fill(const Slots& target, const std::vector<Slot>& entries, int level) {
    target.clear();
    num_keys = 0;
    for (const Slot& entry : entries) {
      const uint64_t key = raised(entry.key, kind, dropped, level);
      Slot& slot = target.of(key);
      if (slot.count == 0 && ++num_keys > max_keys) return false;
      slot.key = key;
      slot.count += entry.count;
    }
    return true;
  }

  std::vector<Slot> scratch_;
};

// Numbers as they lie in memory, or keys of the level `source`, and how often each occurs: once if `counts` is null.
struct Numbers {
  const uint8_t* values;
  size_t count;
  bool is_float32;
  int source;
  const int64_t* counts;
};

template <typename KeyOf>
void add_all(Table* table, const Numbers& n, KeyOf key_of) {
  for (size_t i = 0; i < n.count;) {
    // The level stays as it is until there are too many.
    const int dropped = table->dropped;
    const auto here = [key_of, dropped](size_t k) { return key_of(k, dropped); };
    if (n.counts == nullptr) {
      i = table->add(i, n.count, here, [](size_t) { return 1; });
    } else {
      i = table->add(i, n.count, here, [&n](size_t k) { return n.counts[k]; });
    }
    if (i < n.count) table->make_room(i, std::min(n.count, i + kMaxAhead), here);
  }
}

void add_numbers(Table* table, const Numbers& n) {
  const uint8_t* values = n.values;
  const char kind = table->kind;
  const int source = n.source;
  if (n.is_float32) {
    add_all(table, n, [values](size_t i, int dropped) {
      return pattern_of(load<float>(values + 4 * i)) >> std::max(dropped, 0);
    });
  } else if (kind == 'd' && source == kExact) {
    add_all(table, n, [values](size_t i, int dropped) { return load<uint64_t>(values + 8 * i) >> std::max(dropped, 0); });
  } else if (kind == 'q' && source == kExact) {
    add_all(table, n, [values](size_t i, int dropped) {
      const auto value = load<int64_t>(values + 8 * i);
      return dropped == kExact ? static_cast<uint64_t>(value) : pattern_of(static_cast<double>(value)) >> dropped;
    });
  } else {
    add_all(table, n, [values, kind, source](size_t i, int dropped) {
      return raised(load<uint64_t>(values + 8 * i), kind, source, dropped);
    });
  }
}

const char* problem_of(const Table& table, const Numbers& n, size_t num_counts) {
  const auto num_slots = static_cast<int64_t>(table.slots.size());
  if (table.kind != 'd' && table.kind != 'q' && table.kind != 'Q') return "expected kind d, q or Q";
  if (n.is_float32 && (table.kind != 'd' || n.source != kExact)) return "float32 values are counted as float64";
  if (table.max_keys < 2 || table.max_keys > num_slots / 2) return "expected from 2 keys to half as many as slots";
  if (table.num_keys < 0 || table.num_keys > table.max_keys) return "the table cannot hold so many keys";
  if (n.source < kExact || n.source > table.dropped || table.dropped > kMaxDropped) return "expected -1 to 63 bits";
  if (n.counts == nullptr) return nullptr;
  if (num_counts != n.count) return "every value needs a count";
  for (size_t i = 0; i < n.count; ++i) {
    if (n.counts[i] <= 0) return "expected positive counts";
    if (n.source > 0 && load<uint64_t>(n.values + 8 * i) >> (64 - n.source) != 0) return "a key has too many bits";
  }
  return nullptr;
}

PyObject* run(Table* table, const Numbers& n) {
  bool is_out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    add_numbers(table, n);
  } catch (const std::bad_alloc&) {
    is_out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (is_out_of_memory) return PyErr_NoMemory();
  return Py_BuildValue("(iL)", table->dropped, static_cast<long long>(table->num_keys));
}

}  // namespace

PyObject* count_keys(PyObject*, PyObject* args) {
  PyObject *slots_object, *values_object, *counts_object;
  int kind, dropped, source, is_float32;
  long long max_keys, num_keys;
  if (!PyArg_ParseTuple(args, "OCLiLOpiO:count_keys", &slots_object, &kind, &max_keys, &dropped, &num_keys,
                        &values_object, &is_float32, &source, &counts_object))
    return nullptr;
  View slots, values, counts;
  if (!slots.open(slots_object, PyBUF_WRITABLE) || !values.open(values_object)) return nullptr;
  if (counts_object != Py_None && !counts.open(counts_object)) return nullptr;
  size_t num_words, num_counts = 0;
  const int64_t* words = slots.int64s(&num_words);
  if (words == nullptr) return nullptr;
  const int64_t* given = counts_object == Py_None ? nullptr : counts.int64s(&num_counts);
  if (given == nullptr && counts_object != Py_None) return nullptr;
  const size_t num_slots = num_words / 2, width = is_float32 ? 4 : 8;
  if (num_slots < 2 || (num_words & (num_words - 1)) != 0 || values.size() % width != 0) {
    PyErr_SetString(PyExc_ValueError, "expected a power of two of slots, and whole values");
    return nullptr;
  }
  auto* memory = reinterpret_cast<Slot*>(const_cast<int64_t*>(words));
  Table table(Slots(memory, num_slots), static_cast<char>(kind), max_keys, dropped, num_keys);
  const Numbers numbers = {values.data(), values.size() / width, is_float32 != 0, source, given};
  const char* problem = problem_of(table, numbers, num_counts);
  if (problem != nullptr) {
    PyErr_SetString(PyExc_ValueError, problem);
    return nullptr;
  }
  return run(&table, numbers);
}

}  // namespace shardkit
