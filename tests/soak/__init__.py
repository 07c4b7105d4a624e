"""Workers killed, stopped and replaced while many machines run: nothing lost, nothing counted twice."""
