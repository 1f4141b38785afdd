# Installs BUILD into a prefix of its own, moves that (nothing in it may name where it was), builds
# the consumer in SOURCE against it and runs what came out.
set(work ${BUILD}/package-test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit code ${status}: ${command}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${work}/build -G ${GENERATOR}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/build/consumer)
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/build/train_step)
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/build/own_model)
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/build/own_network)
if(EXISTS ${work}/prefix/bin/compact)
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/prefix/bin/compact list)
endif()
file(REMOVE_RECURSE ${work})
