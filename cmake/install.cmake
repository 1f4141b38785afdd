# `cmake --install`: static libraries, headers, the program (which finds torch where it was built
# against it) and a package file, so that find_package(CompAct) gives CompAct::codecs, CompAct::ops
# and the other layers.
include(CMakePackageConfigHelpers)
set(COMPACT_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/CompAct)

get_property(COMPACT_INSTALLED GLOBAL PROPERTY COMPACT_LAYERS)
list(REMOVE_ITEM COMPACT_INSTALLED cli)  # the program's own
set(COMPACT_NEEDED "")                   # libraries, by the names of cmake/libraries.cmake
foreach(layer IN LISTS COMPACT_INSTALLED)
  set_target_properties(compact_${layer} PROPERTIES EXPORT_NAME ${layer})
  install(TARGETS compact_${layer} EXPORT CompActTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  get_property(libraries GLOBAL PROPERTY COMPACT_LIBRARIES_${layer})
  list(APPEND COMPACT_NEEDED ${libraries})
endforeach()
list(REMOVE_DUPLICATES COMPACT_NEEDED)
get_property(folders GLOBAL PROPERTY COMPACT_FOLDERS)  # not those of one backend
list(REMOVE_ITEM folders compact/cli)
foreach(folder IN LISTS folders)
  file(GLOB headers CONFIGURE_DEPENDS ${folder}/*.h)
  list(FILTER headers EXCLUDE REGEX "_impl\\.h$")
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(FILES compact/compact.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/compact)
install(EXPORT CompActTargets NAMESPACE CompAct:: DESTINATION ${COMPACT_PACKAGE_DIR})

if(TARGET compact)
  set_target_properties(compact PROPERTIES INSTALL_RPATH ${TORCH_DIR}/lib)
  install(TARGETS compact RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/CompActConfig.cmake.in ${PROJECT_BINARY_DIR}/CompActConfig.cmake
  INSTALL_DESTINATION ${COMPACT_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CompActConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CompActConfig.cmake
  ${PROJECT_BINARY_DIR}/CompActConfigVersion.cmake cmake/torch.cmake cmake/libraries.cmake
  DESTINATION ${COMPACT_PACKAGE_DIR})
