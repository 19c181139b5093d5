// The wire of a host as a process of its own: it can be thrown away with MPI,
// which cannot lose a host and go on.
#pragma once

namespace hvd {

// Begins MPI from the library `mpi_path` and obeys `control`, a stream socket
// to the leader of the host. It answers each line with one line, "ok" or
// "error " and why:
//
//   (at the start)                the answer "ready RANK SIZE VERSION", of MPI
//   open SET PID FD TOKEN SIZE EPOCH RANK,RANK,...
//                                 serves the region of process set number SET,
//                                 see ShmSegment; the hosts' ranks in MPI
//   close SET                     waits until that has ended
//   end                           ends the process in peace
//
// When the socket closes the process ends at once.
int RunWireProcess(int control, const char* mpi_path);

}  // namespace hvd

// For Python's ctypes.
extern "C" int hvd_run_wire_process(int control, const char* mpi_path);
