# The program `compact`.
add_executable(compact compact/cli/main.cpp)
target_link_libraries(compact PRIVATE compact_cli)
# The commit of the sources, looked up in every build and written where it is another one.
add_custom_target(compact_commit BYPRODUCTS ${CMAKE_BINARY_DIR}/commit/compact/cli/commit.h
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
          -DFILE=${CMAKE_BINARY_DIR}/commit/compact/cli/commit.h -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake)
add_dependencies(compact compact_commit)
target_include_directories(compact PRIVATE ${CMAKE_BINARY_DIR}/commit)
compact_precompiled(compact tensors)
compact_flags(compact)
set_target_properties(compact PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
