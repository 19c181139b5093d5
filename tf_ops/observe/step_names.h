// Which requests tell that a step of training goes on.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// Whether an optimizer or tape names the first of its collectives like this.
inline bool IsOfStep(const std::string& name) {
  constexpr std::string_view kFirstBucket = "/bucket_0";
  return name.size() > kFirstBucket.size() &&
         name.compare(name.size() - kFirstBucket.size(), kFirstBucket.size(),
                      kFirstBucket) == 0;
}

}  // namespace hvd
