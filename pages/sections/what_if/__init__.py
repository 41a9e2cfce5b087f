"""What if? Changes of the run on screen: the possible changes, the changes in force, and before beside after."""
