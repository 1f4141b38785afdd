# The library of the Python package in python/: classes and operators of TORCH_LIBRARY, so that one
# file serves every Python. Nothing of Python is linked, and the layers that it needs are inside.
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/compact/python/*.cpp)
add_library(compact_python SHARED ${sources})
target_link_libraries(compact_python PRIVATE compact_networks compact_optim compact_plan)
target_compile_definitions(compact_python PRIVATE COMPACT_VERSION="${PROJECT_VERSION}")
# Other libraries in the process may have names like ours.
target_link_options(compact_python PRIVATE "LINKER:--exclude-libs,ALL")
compact_precompiled(compact_python torch)
compact_unity(compact_python)
compact_cold(compact_python)
compact_flags(compact_python)
set_target_properties(compact_python PROPERTIES CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python)
# The torch that the library was built for, which the package compares before it loads it.
file(WRITE ${CMAKE_BINARY_DIR}/python/libcompact_python.torch "${TORCH_VERSION}\n")
if(NOT COMPACT_PROGRAM)  # a wheel, whose torch is loaded before it
  target_link_options(compact_python PRIVATE "LINKER:--no-undefined")
  install(TARGETS compact_python LIBRARY DESTINATION compact)
  install(FILES ${CMAKE_BINARY_DIR}/python/libcompact_python.torch DESTINATION compact)
endif()
