// Small numbers for places, so that each word of shadow memory can name one.

#ifndef LEAN_ATTENTION_OPS_EMULATOR_PLACES_H_
#define LEAN_ATTENTION_OPS_EMULATOR_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/emulator/ordering.h"
#include "ops/emulator/report.h"

namespace lean_attention::emulator {

class Places {
 public:
  // kMaxPlaces when there are too many.
  int NumberOf(const Place& place) {
    Entry& entry = cache_[(reinterpret_cast<uintptr_t>(place.file) / 8 + place.line) % kEntries];
    if (entry.place.line != place.line || entry.place.file != place.file) {
      entry = {place, Find(place)};
    }
    return entry.number;
  }
  const Place& operator[](int number) const { return places_[static_cast<size_t>(number)]; }

 private:
  static constexpr size_t kEntries = 1024;
  struct Entry {
    Place place;
    int number = 0;
  };

  int Find(const Place& place) {
    size_t i = 0;
    while (i < places_.size() && places_[i] != place) ++i;
    if (i == places_.size() && i < kMaxPlaces) places_.push_back(place);
    return static_cast<int>(i);
  }

  std::vector<Entry> cache_ = std::vector<Entry>(kEntries, Entry{{nullptr, 0}, 0});
  std::vector<Place> places_;
};

}  // namespace lean_attention::emulator

#endif  // LEAN_ATTENTION_OPS_EMULATOR_PLACES_H_
