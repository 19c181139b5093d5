// The functions and constants of MPI's standard ABI (MPI 5.0, chapter "ABI")
// that we use. No MPI is needed to build.
#pragma once

namespace hvd {

struct MpiApi {
  // Handles are pointers; predefined ones are small numbers.
  using Comm = struct MpiCommOfAbi*;
  using Request = struct MpiRequestOfAbi*;
  using Datatype = struct MpiDatatypeOfAbi*;
  using ErrorHandler = struct MpiErrorHandlerOfAbi*;
  struct Status {
    int source;
    int tag;
    int error;
    int internal[5];
  };

  static constexpr int kSuccess = 0;
  static constexpr int kErrInStatus = 19;
  static constexpr int kUndefined = -32766;
  static constexpr int kThreadMultiple = 4096;
  static constexpr int kMaxErrorString = 512;
  static constexpr int kMaxLibraryVersionString = 8192;
  static constexpr int kAnySource = -1;
  static constexpr int kAnyTag = -2;
  static Comm World() { return reinterpret_cast<Comm>(0x101); }
  static Datatype Byte() { return reinterpret_cast<Datatype>(0x247); }
  static ErrorHandler ErrorsReturn() {
    return reinterpret_cast<ErrorHandler>(0x143);
  }

  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*comm_rank)(Comm, int*) = nullptr;
  int (*comm_size)(Comm, int*) = nullptr;
  int (*comm_set_errhandler)(Comm, ErrorHandler) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  int (*get_library_version)(char*, int*) = nullptr;
  int (*isend)(const void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*irecv)(void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*testsome)(int, Request*, int*, int*, Status*) = nullptr;
  int (*iprobe)(int, int, Comm, int*, Status*) = nullptr;
};

}  // namespace hvd
