"""CPU kernels as LLVM IR: processors, a builder of functions, and the compiler with its cache."""
