# The layer of processes: torch's c10d, whose header of gloo includes headers that no package of torch
# has; cmake/gloo stands for them.
compact_layer(parallel TORCH COLD DEPENDS base PROGRAM gloo_group nccl_link place)
# Between GPUs NCCL, whose header and library lie beside a torch for CUDA in a package of their own.
if(COMPACT_CUDA AND COMPACT_PROGRAM)
  find_path(COMPACT_NCCL_INCLUDE nccl.h PATHS ${TORCH_DIR}/../nvidia/nccl/include
    ${TORCH_DIR}/../nvidia/cu13/include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  find_library(COMPACT_NCCL_LIBRARY NAMES libnccl.so.2 nccl PATHS ${TORCH_DIR}/../nvidia/nccl/lib
    ${TORCH_DIR}/../nvidia/cu13/lib)
  if(COMPACT_NCCL_INCLUDE AND COMPACT_NCCL_LIBRARY)
    message(STATUS "NCCL ${COMPACT_NCCL_LIBRARY}")
    target_compile_definitions(compact_parallel PRIVATE COMPACT_NCCL)
    target_include_directories(compact_parallel SYSTEM PRIVATE ${COMPACT_NCCL_INCLUDE}
      ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    target_link_libraries(compact_parallel PRIVATE ${COMPACT_NCCL_LIBRARY})
    get_filename_component(nccl_folder ${COMPACT_NCCL_LIBRARY} DIRECTORY)
    target_link_options(compact_parallel INTERFACE "LINKER:-rpath,${nccl_folder}")
  else()
    message(STATUS "NCCL not found: several ranks go through the host")
  endif()
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/parallel/gloo_group.cpp PROPERTIES
  COMPILE_OPTIONS "-isystem;${PROJECT_SOURCE_DIR}/cmake/gloo" SKIP_UNITY_BUILD_INCLUSION ON)
