// Where this process is on its host. The engine does not need it: it is kept
// for graphs, whose ops read it when they run.
#pragma once

namespace hvd {

struct LocalTopology {
  int rank = 0;
  int size = 1;
};

// Both may be called by any thread. Set before the engine starts; what the
// launcher says is not checked.
void SetLocalTopology(const LocalTopology& topology);
LocalTopology GetLocalTopology();

}  // namespace hvd
