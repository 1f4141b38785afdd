# The program `compact`.
add_executable(compact compact/cli/main.cpp)
target_link_libraries(compact PRIVATE compact_cli)
compact_precompiled(compact tensors)
compact_flags(compact)
set_target_properties(compact PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
