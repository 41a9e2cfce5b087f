"""What if? Changes of the run on screen: what can be changed here, the changes in force, and before beside after."""
